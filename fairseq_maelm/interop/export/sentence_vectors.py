"""What sentence-transformers needs beside a model: how the vector of a text is made from the states of its tokens."""

import importlib.util
import json
import logging
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from fairseq_maelm.interop.agreement import Agreement, refuse_differences
from fairseq_maelm.interop.export.configuration import Content
from fairseq_maelm.interop.export.source import Source
from fairseq_maelm.libraries import import_transformers

logger = logging.getLogger(__name__)

POOLINGS = ("mean", "first")

# Of several lengths, for the comparison.
_TEXTS = ("a", "Two sentences are compared.", "The longer one has many more words than the other, and a number: 1234.")


class SentenceVectors(NamedTuple):
    """How a retrieval checkpoint makes a text's vector.

    Attributes:
        pooling: "mean" of the states of all tokens, or "first", the state of <s>.
        similarity: "cosine", which gives vectors length 1, or "dot".
        max_tokens: longer texts are cut; <s> and </s> counted.
    """

    pooling: str
    similarity: str
    max_tokens: int

    @property
    def normalized(self) -> bool:
        """Whether vectors have length 1."""
        return self.similarity == "cosine"


def sentence_vectors_of(source: Source) -> Optional[SentenceVectors]:
    """The settings in a checkpoint's task, or None for tasks that make no vectors of texts.

    Raises:
        ValueError: for a pooling that is not known.
    """
    task = source.config["task"]
    pooling, similarity = getattr(task, "pooling", None), getattr(task, "similarity", None)
    if pooling is None or similarity is None:
        return None
    if str(pooling) not in POOLINGS:
        raise ValueError(f"{source.checkpoint} pools by {pooling!r}, and what is known is {', '.join(POOLINGS)}")
    positions = source.model.max_positions()
    limit = min(int(getattr(task, "tokens_per_sample", None) or positions), positions)
    return SentenceVectors(str(pooling), str(similarity), limit)


def write_sentence_vectors(source: Source, content: Content, folder: Path) -> None:
    """Write the modules of sentence-transformers into a folder that holds the encoder of a retrieval checkpoint.

    The files are of the form that all its versions read. Other folders need none: sentence-transformers takes the mean.
    """
    vectors = sentence_vectors_of(source)
    if vectors is None or content.architecture != "encoder":
        return
    names = ["Transformer", "Pooling", *(["Normalize"] if vectors.normalized else [])]
    paths = ["", *(f"{number}_{name}" for number, name in enumerate(names[1:], 1))]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}
        for number, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    pooling = {
        "word_embedding_dimension": int(source.config["model"].encoder_embed_dim),
        "pooling_mode_cls_token": vectors.pooling == "first",
        "pooling_mode_mean_tokens": vectors.pooling == "mean",
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    for path in paths[1:]:
        (folder / path).mkdir()
    _write(folder / "modules.json", modules)
    _write(folder / "1_Pooling" / "config.json", pooling)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": vectors.max_tokens, "do_lower_case": False})
    settings: dict[str, Any] = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": vectors.similarity}
    _write(folder / "config_sentence_transformers.json", settings)


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def verify_sentence_vectors(source: Source, content: Content, folder: Path) -> list[Agreement]:
    """Compare the vectors of sentence-transformers with the checkpoint's, where there are any to compare.

    Raises:
        ValueError: if they differ by more than rounding.
    """
    vectors = sentence_vectors_of(source)
    if vectors is None or content.architecture != "encoder":
        return []
    if importlib.util.find_spec("sentence_transformers") is None:
        logger.warning("sentence-transformers is not installed: its vectors are not compared")
        return []
    # Not before transformers: that import is guarded against what else may be installed.
    import_transformers()
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    found = torch.from_numpy(model.encode(list(_TEXTS)))
    expected = torch.stack([_vector(source, vectors, text) for text in _TEXTS])
    agreement = Agreement(
        "vectors of sentence-transformers", float((found - expected).abs().max()), float(expected.abs().max())
    )
    return refuse_differences([agreement], "sentence-transformers gives other vectors than the checkpoint")


@torch.no_grad()
def _vector(source: Source, vectors: SentenceVectors, text: str) -> Tensor:
    tokens = source.tokenizer.encode(text)[: vectors.max_tokens - 2]
    sequence = [source.dictionary.bos(), *tokens, source.dictionary.eos()]
    states = source.model.extract_features(torch.tensor([sequence]))[0][0]
    return text_vector(states, vectors.pooling, vectors.normalized)


def text_vector(states: Tensor, pooling: Optional[str], normalized: bool) -> Tensor:
    """The vector <float>[D] of a text from the states <float>[n, D] of its tokens."""
    vector = states[0] if pooling == "first" else states.mean(dim=0)
    return vector / vector.norm() if normalized else vector
