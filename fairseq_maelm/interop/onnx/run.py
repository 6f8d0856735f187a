"""Export of a checkpoint to a verified folder with ONNX files, tokenizer and model card."""

import logging
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_maelm.files import write_json
from fairseq_maelm.interop.agreement import Agreement
from fairseq_maelm.interop.export.card import model_card
from fairseq_maelm.interop.export.content import Content, choose_content
from fairseq_maelm.interop.export.run import Export, ExportSettings, write_tokenizer
from fairseq_maelm.interop.export.sentence_vectors import sentence_vectors_of
from fairseq_maelm.interop.export.source import Source, load_source
from fairseq_maelm.interop.hard_strings import HARD_STRINGS
from fairseq_maelm.interop.onnx.agreement import Loss, agreements_with, quantization_loss
from fairseq_maelm.interop.onnx.graph import INPUTS, SCORES, STATES, EncoderGraph
from fairseq_maelm.interop.onnx.onnx_file import (
    MODEL_FILE,
    QUANTIZED_FILE,
    OnnxEncoder,
    quantize,
    require_onnx,
    write_onnx,
)
from fairseq_maelm.prepared_folder import whole_folder
from fairseq_maelm.version import __version__

logger = logging.getLogger(__name__)

FACTS_FILE = "onnx.json"

# The comparison of precisions uses this many texts of the sample.
_MOST_TEXTS = 1000


def export_onnx(
    checkpoint: Path, vocabulary: Path | None, output: Path, settings: ExportSettings, replace: bool = False
) -> Export:
    """Export a checkpoint's encoder, with its fine-tuned head if any, as ONNX; arguments as in ``export``."""
    require_onnx()
    with whole_folder(output, "maelm export", replace) as folder:
        source = load_source(checkpoint, vocabulary, settings.averaged_weights)
        content = _content(source, settings)
        sample = _sequences(source, settings.texts) if settings.int8 else []
        vectors = sentence_vectors_of(source, content)
        pooling = (None, False) if vectors is None else (vectors.pooling, vectors.normalized)
        graph = EncoderGraph(source.model, content.head, *pooling).eval()
        logger.info("exporting %s: %s", checkpoint, ", ".join(graph.outputs))
        write_onnx(graph, folder / MODEL_FILE)
        single = OnnxEncoder(folder / MODEL_FILE)
        agreements = agreements_with(source, content, graph, single)
        loss = None
        if settings.int8:
            quantize(folder / MODEL_FILE, folder / QUANTIZED_FILE)
            loss = quantization_loss(single, OnnxEncoder(folder / QUANTIZED_FILE), sample)
        differences = write_tokenizer(source, folder, makes_batches=True)
        sizes = {path.name: path.stat().st_size for path in sorted(folder.glob("*.onnx"))}
        facts = _facts(source, content, graph, agreements, loss, sizes)
        write_json(folder / FACTS_FILE, facts)
        name = settings.name or output.name
        more = [] if loss is None else [f"## 8 bits\n\n`{QUANTIZED_FILE}`: {loss.describe()}."]
        use = _use(graph, name)
        card = model_card(source, content, name, settings.license, agreements, differences, use, more)
        (folder / "README.md").write_text(card, encoding="utf-8")
    remarks = [] if loss is None else [loss.describe()]
    remarks += [f"{output / name}: {size / 1e6:.1f} MB, verified" for name, size in sizes.items()]
    return Export(output, content, agreements, remarks)


def _content(source: Source, settings: ExportSettings) -> Content:
    architecture = settings.architecture
    if architecture == "masked-lm":
        raise ValueError(
            "the format onnx is for encoders and fine-tuned heads: use --format maelm to predict masked tokens"
        )
    fine_tuned = source.model.lm_head is None and bool(source.model.classification_heads)
    if architecture is None and settings.head is None and not fine_tuned:
        architecture = "encoder"
    # These two formats represent all models with such layers.
    form = "modernbert" if source.options.layer == "modern" else "maelm"
    return choose_content(source, form, architecture, settings.head, settings.labels)


def _sequences(source: Source, texts: Path | None) -> list[np.ndarray]:
    """Return a file's lines, or else the hard strings, as tokens <int64>[n] with <s> and </s>, cut to fit the model."""
    lines = HARD_STRINGS if texts is None else texts.read_text(encoding="utf-8").split("\n")
    longest = source.model.max_positions() - 2
    bos, eos = source.dictionary.bos(), source.dictionary.eos()
    encoded = [source.tokenizer.encode(line)[:longest] for line in lines if line.strip()][:_MOST_TEXTS]
    sequences = [np.array([bos, *tokens, eos], dtype=np.int64) for tokens in encoded if tokens]
    if not sequences:
        raise ValueError(f"there is no text in {texts}: give a file with one text per line")
    return sequences


def _facts(
    source: Source,
    content: Content,
    graph: EncoderGraph,
    agreements: list[Agreement],
    loss: Loss | None,
    sizes: dict[str, int],
) -> dict[str, Any]:
    return {
        "inputs": list(INPUTS),
        "outputs": list(graph.outputs),
        "architecture": content.architecture,
        "labels": None if content.labels is None else list(content.labels),
        "pooling": graph.pooling,
        "normalized": graph.normalized,
        "max_length": source.model.max_positions(),
        "pad_token_id": source.dictionary.pad(),
        "bytes": sizes,
        "agreement": [each._asdict() for each in agreements],
        "int8": None if loss is None else loss._asdict(),
        "fairseq_maelm": __version__,
    }


def _use(graph: EncoderGraph, name: str) -> str:
    """Return Python code that needs onnxruntime and tokenizers, but neither torch nor transformers."""
    results = ", ".join({SCORES: "scores", STATES: "states"}.get(output, "vectors") for output in graph.outputs)
    rows = {"input_ids": "ids", "attention_mask": "attention_mask"}
    inputs = ", ".join(f'"{key}": numpy.array([row.{value} for row in batch])' for key, value in rows.items())
    lines = [
        "import numpy, onnxruntime, tokenizers",
        f'tokenizer = tokenizers.Tokenizer.from_file("{name}/tokenizer.json")',
        f'session = onnxruntime.InferenceSession("{name}/{MODEL_FILE}")',
        'batch = tokenizer.encode_batch(["A sentence.", "And one more."])',
        f"[{results}] = session.run(None, {{{inputs}}})",
    ]
    return "\n".join(lines)
