"""The files of sentence-transformers, which define how the vector of a text is computed from its tokens' states."""

import importlib.util
import logging
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fairseq_maelm.files import write_json
from fairseq_maelm.interop.agreement import Agreement, refuse_differences
from fairseq_maelm.interop.export.content import Content
from fairseq_maelm.interop.export.source import Source
from fairseq_maelm.libraries import import_transformers

logger = logging.getLogger(__name__)

POOLINGS = ("mean", "first")

# Texts of several lengths, for the comparison.
_TEXTS = ("a", "Two sentences are compared.", "The longer one has many more words than the other, and a number: 1234.")


class SentenceVectors(NamedTuple):
    """The way in which a retrieval checkpoint computes a text's vector."""

    pooling: str  # "mean" of the states of all tokens, or "first", the state of <s>
    normalized: bool  # vectors have length 1, as for cosine similarity
    max_tokens: int  # longer texts are cut to this number of tokens, with <s> and </s>


def sentence_vectors_of(source: Source, content: Content) -> SentenceVectors | None:
    """Return the settings of a retrieval checkpoint that is exported as an encoder; None for other exports."""
    task = source.checkpoint.config["task"]
    pooling, similarity = task.get("pooling"), task.get("similarity")
    if pooling is None or similarity is None or content.architecture != "encoder":
        return None
    if str(pooling) not in POOLINGS:
        raise ValueError(f"{source.checkpoint.path} pools by {pooling!r}, which is not one of {', '.join(POOLINGS)}")
    positions = source.model.max_positions()
    limit = min(int(task.get("tokens_per_sample") or positions), positions)
    return SentenceVectors(str(pooling), str(similarity) == "cosine", limit)


def write_sentence_vectors(source: Source, content: Content, folder: Path) -> None:
    """Write the files of sentence-transformers for a retrieval encoder, in a form that all its versions read.

    Folders of other checkpoints need no such files, because sentence-transformers takes the mean by default.
    """
    vectors = sentence_vectors_of(source, content)
    if vectors is None:
        return
    names = ["Transformer", "Pooling", *(["Normalize"] if vectors.normalized else [])]
    paths = ["", *(f"{number}_{name}" for number, name in enumerate(names[1:], 1))]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}
        for number, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    pooling = {
        "word_embedding_dimension": int(source.options.encoder_embed_dim),
        "pooling_mode_cls_token": vectors.pooling == "first",
        "pooling_mode_mean_tokens": vectors.pooling == "mean",
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    for path in paths[1:]:
        (folder / path).mkdir()
    write_json(folder / "modules.json", modules)
    write_json(folder / "1_Pooling" / "config.json", pooling)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": vectors.max_tokens, "do_lower_case": False})
    similarity = "cosine" if vectors.normalized else "dot"
    settings: dict[str, Any] = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": similarity}
    write_json(folder / "config_sentence_transformers.json", settings)


@torch.no_grad()
def verify_sentence_vectors(source: Source, content: Content, folder: Path) -> list[Agreement]:
    """Compare the vectors of sentence-transformers with those of a retrieval checkpoint."""
    vectors = sentence_vectors_of(source, content)
    if vectors is None:
        return []
    if importlib.util.find_spec("sentence_transformers") is None:
        logger.warning("sentence-transformers is not installed, so its vectors are not compared")
        return []
    # sentence-transformers imports transformers, which must be imported by this function.
    import_transformers()
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    found = torch.from_numpy(model.encode(list(_TEXTS)))
    expected = torch.empty_like(found)
    for row, text in zip(expected, _TEXTS, strict=True):
        tokens = source.tokenizer.encode(text)[: vectors.max_tokens - 2]
        sequence = torch.tensor([[source.dictionary.bos(), *tokens, source.dictionary.eos()]])
        row.copy_(text_vector(source.model.extract_features(sequence)[0][0], vectors.pooling, vectors.normalized))
    difference, size = float((found - expected).abs().max()), float(expected.abs().max())
    compared = [Agreement("vectors of sentence-transformers", difference, size)]
    return refuse_differences(compared, "sentence-transformers gives different vectors than the checkpoint")


def text_vector(states: Tensor, pooling: str | None, normalized: bool) -> Tensor:
    """Compute the vector <float>[D] of a text from the states <float>[n, D] of its tokens."""
    vector = states[0] if pooling == "first" else states.mean(dim=0)
    return vector / vector.norm() if normalized else vector
