"""ONNX files: the command, the outputs of every variant, and refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import model_of, usage_error

from fairseq_maelm import MaelmModel, cli
from fairseq_maelm.interop.agreement import padded
from fairseq_maelm.interop.importing.run import import_model
from fairseq_maelm.interop.onnx.agreement import quantization_loss, run
from fairseq_maelm.interop.onnx.graph import EMBEDDING, SCORES, STATES, EncoderGraph
from fairseq_maelm.interop.onnx.onnx_file import OnnxEncoder, write_onnx

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

TEXTS = ["The sailor takes the rope to the harbour.", "A judge objects.", "slowly"]
MODERN = {"layer": "modern", "positions": "rotary", "relative_buckets": "none", "encoder_layers": 4}
MODERN |= {"rotary_base": 10_000, "local_rotary_base": 500}
HEAD = {"dense.weight": (48, 48), "dense.bias": (48,), "out_proj.weight": (3, 48), "out_proj.bias": (3,)}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints with T5 buckets: one of pretraining with its vocabulary, and one with a fine-tuned head."""
    from interop.importing import sources

    root = tmp_path_factory.mktemp("checkpoints")
    tokenizer, sentencepiece = sources.pieces(root)
    sources.save(root / "source", "MPNet", tokenizer, tokenizer.get_vocab_size(), num_hidden_layers=1)
    (root / "source" / "sentencepiece.bpe.model").write_bytes(sentencepiece)
    import_model(root / "source", root / "data")
    state = torch.load(root / "data" / "checkpoint_best.pt", weights_only=True)
    state["model"] = {name: weight for name, weight in state["model"].items() if not name.startswith("lm_head.")}
    state["model"] |= {f"classification_heads.topic.{name}": torch.randn(shape) for name, shape in HEAD.items()}
    torch.save(state, root / "data" / "fine_tuned.pt")
    return root / "data"


def words(checkpoint: Path, output: Path, *options: Any) -> list[str]:
    given = ["export", "--checkpoint", checkpoint, "--format", "onnx", "--output", output, *options]
    return [str(word) for word in given]


def test_encoder_and_its_card(checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command exports, the card's code works, and the loss by 8 bits is measured on given texts."""
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    folder = tmp_path / "onnx"
    cli.main(words(checkpoints, folder, "--int8", "--texts", tmp_path / "texts.txt"))
    printed = capsys.readouterr().out
    assert "hidden states: largest difference" in printed and "on 3 texts: cosine of sentence vectors" in printed
    card = (folder / "README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0].strip()
    assert code.count("\n") == 4 and "library_name: onnx" in card and "8 bits against single precision" in card
    names: dict[str, Any] = {}
    exec(code.replace('"onnx/', f'"{folder}/').replace('"A sentence.", "And one more."', repr(TEXTS)[1:-1]), names)
    hub = MaelmModel.from_pretrained(str(checkpoints))
    tokens = hub.encode_batch(TEXTS)
    assert torch.equal(torch.tensor([row.ids for row in names["batch"]]), tokens)
    with torch.no_grad():
        expected = hub.extract_features(tokens)
    inside = tokens.ne(1)
    torch.testing.assert_close(torch.from_numpy(names["states"])[inside], expected[inside], rtol=0, atol=1e-5)
    facts = json.loads((folder / "onnx.json").read_text())
    assert facts["agreement"][0]["difference"] < 1e-5 and facts["outputs"] == [STATES] and facts["max_length"] == 40
    assert 0.98 < facts["int8"]["lowest_cosine"] <= facts["int8"]["mean_cosine"] < 1
    assert 1e-4 < facts["int8"]["largest_difference"] < 0.5
    assert facts["bytes"]["model_int8.onnx"] < 0.8 * facts["bytes"]["model.onnx"]


def test_a_fine_tuned_head_is_in_the_file(checkpoints: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("sea\ncourt\nkitchen\n")
    folder = tmp_path / "onnx"
    cli.main(words(checkpoints / "fine_tuned.pt", folder, "--int8", "--labels", tmp_path / "labels.txt"))
    facts = json.loads((folder / "onnx.json").read_text())
    assert facts["outputs"] == [SCORES] and facts["labels"] == ["sea", "court", "kitchen"]
    assert 0.5 < facts["int8"]["same_answers"] <= 1 and facts["int8"]["mean_cosine"] is None
    hub = MaelmModel.from_pretrained(str(checkpoints), "fine_tuned.pt")
    encoder = OnnxEncoder(folder / "model.onnx", threads=1)
    for texts in (TEXTS, TEXTS[:1]):
        tokens = hub.encode_batch(texts)
        with torch.no_grad():
            expected = hub.predict("topic", tokens, return_logits=True)
        assert expected.std() > 0.1
        torch.testing.assert_close(run(encoder, tokens)[SCORES], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "first", None])
@pytest.mark.parametrize(
    "shape",
    [*({"relative_buckets": name} for name in ("t5", "reference", "none")), {"positions": "rotary"}, MODERN],
    ids=str,
)
def test_the_graph_is_the_model(shape: dict[str, Any], pooling: str | None) -> None:
    """The graph equals the model for all lengths, with padding and pooling, without NaN for padding alone."""
    model = model_of(**shape)
    graph = EncoderGraph(model, pooling=pooling, normalized=True).eval()
    tokens = torch.randint(4, 39, (4, 64), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([64, 2, 7, 1])
    tokens[torch.arange(64)[None] >= lengths[:, None]] = 1
    with torch.no_grad():
        outputs = dict(zip(graph.outputs, graph(tokens, tokens.ne(1).long())))
        expected = model.extract_features(tokens)[0]
        inside = tokens.ne(1)
        torch.testing.assert_close(outputs[STATES][inside], expected[inside], rtol=0, atol=1e-5)
        assert torch.isfinite(graph(tokens, torch.zeros_like(tokens))[0]).all()
    if pooling is not None:
        rows = [row[:1] if pooling == "first" else row[:length] for row, length in zip(expected, lengths)]
        vectors = torch.stack([row.mean(dim=0) / row.mean(dim=0).norm() for row in rows])
        torch.testing.assert_close(outputs[EMBEDDING], vectors, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [{"relative_buckets": "reference", "encoder_layers": 1}, MODERN], ids=str)
def test_vectors_of_texts_are_in_the_file(shape: dict[str, Any], tmp_path: Path) -> None:
    """Pooling works in onnxruntime, and the loss between equal files is zero."""
    model = model_of(**shape)
    write_onnx(EncoderGraph(model, pooling="mean", normalized=True), tmp_path / "model.onnx")
    encoder = OnnxEncoder(tmp_path / "model.onnx")
    assert encoder.outputs == (STATES, EMBEDDING)
    sequences = [np.arange(4, 4 + length) for length in (2, 7, 30)]
    with torch.no_grad():
        for sequence, vector in zip(sequences, run(encoder, padded(sequences))[EMBEDDING]):
            mean = model.extract_features(torch.from_numpy(sequence)[None])[0][0].mean(dim=0)
            torch.testing.assert_close(vector, mean / mean.norm(), rtol=0, atol=1e-5)
    loss = quantization_loss(encoder, encoder, sequences)
    assert loss.mean_cosine == pytest.approx(1) and loss.largest_difference == 0 and loss.same_answers is None
    assert loss.texts == 3 and "on 3 texts" in loss.describe()


def test_what_makes_no_sense_is_refused(checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    output, empty = tmp_path / "onnx", tmp_path / "empty.txt"
    with pytest.raises(SystemExit, match="masked tokens"):
        cli.main(words(checkpoints, output, "--architecture", "masked-lm"))
    with pytest.raises(SystemExit, match="there is no text"):
        cli.main(words(checkpoints, output, "--int8", "--texts", empty))
    assert "give --int8" in usage_error(capsys, words(checkpoints, output, "--texts", empty))
    assert "are for --format onnx" in usage_error(capsys, words(checkpoints, output, "--format", "maelm", "--int8"))
    with pytest.raises(ValueError, match="no head"):
        EncoderGraph(model_of(), head="none")
    with pytest.raises(ValueError, match="pooling"):
        EncoderGraph(model_of(), pooling="max")
    assert not output.exists() and not list(tmp_path.glob(".*unfinished"))
