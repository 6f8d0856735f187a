"""What modern recipes pretrain, with either of their decoders, is taken by every command that predicts."""

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from end_to_end.small import LAST
from end_to_end.test_prompting import PROMPT, TEMPLATE, WORDS
from end_to_end.toy import run
from fairseq_maelm import MaelmModel, cli
from fairseq_maelm.checkpoints.reader import read_checkpoint
from fairseq_maelm.finetuning.prompting.inference import classify_by_prompt
from fairseq_maelm.scoring.sentence_scores import score

TEXT = "The sailor takes the <mask> to the harbour."


@pytest.fixture(scope="module", params=["cross", "shared"])
def attention(request: pytest.FixtureRequest) -> str:
    """The decoder's attention."""
    return str(request.param)


@pytest.fixture(scope="module")
def pretrained(attention: str, toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The save folder of a few updates by the recipe, with averaged weights."""
    folder = tmp_path_factory.mktemp("recipe") / "run"
    words = ["maelm", "pretrain", toy_data, "--output", folder, "--recipe", "modern_17m", "--gpus", 0]
    changes = ["max-update=3"]
    if attention != "shared":
        changes += [f"decoder-attention={attention}", "decoder-layers=2"]
    run([*words, "--set", *changes, "--", "--store-ema", "--ema-decay", 0.5, "--disable-validation"])
    return folder


def call(*words: Any) -> None:
    cli.main([str(word) for word in words])


def test_the_average_has_the_decoder(attention: str, pretrained: Path, tmp_path: Path) -> None:
    call("export", "--format", "fairseq", "--averaged-weights", "--checkpoint", pretrained / LAST, "--output", tmp_path)
    found = read_checkpoint(next(tmp_path.glob("*.pt")))
    layers = {"cross": 2, "shared": 3}[attention]
    assert (found.config.model.decoder_attention, found.config.model.decoder_layers) == (attention, layers)
    last = read_checkpoint(pretrained / LAST).weights
    assert found.weights.keys() == last.keys()
    assert all((found.weights[name] != last[name]).any() for name in last if "_attn." in name and "weight" in name)


def test_fill_score_and_prompts(pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub = MaelmModel.from_pretrained(str(pretrained), LAST)
    best, sentence = hub.fill_mask(TEXT, topk=1)[0][0], TEXT.replace("<mask>", "rope")
    capsys.readouterr()
    call("fill", "--checkpoint", pretrained / LAST, "--top", 1, "--device", "cpu", TEXT)
    assert re.search(r"mask 1 +([\d.]+) +(\S+)", capsys.readouterr().out).groups() == (
        f"{best.probability:.3f}",
        best.token,
    )

    text = tmp_path / "text.txt"
    text.write_text(sentence + "\n")
    call("score", text, "--checkpoint", pretrained / LAST, "--output", tmp_path / "scores")
    (row,) = csv.DictReader((tmp_path / "scores" / "scores.tsv").open(encoding="utf-8"), delimiter="\t")
    assert float(row["sum"]) == pytest.approx(score(hub, [sentence])[0].sum, abs=1e-4)

    (tmp_path / "topics.yaml").write_text(PROMPT)
    options = ["--prompt", tmp_path / "topics.yaml", "--several-pieces", "--device", "cpu"]
    capsys.readouterr()
    call("predict", text, "--checkpoint", pretrained / LAST, *options)
    header, answer = (line.split("\t") for line in capsys.readouterr().out.splitlines())
    (expected,) = classify_by_prompt(hub, [sentence], TEMPLATE, WORDS, several_pieces=True)
    assert {name: float(answer[header.index(f"P({name})")]) for name in WORDS} == pytest.approx(expected, abs=1e-4)


def test_the_encoder_goes_out_and_the_folder_predicts(attention: str, pretrained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    words = ["--output", folder, "--format", "modernbert", "--complete"]
    call("export", "--checkpoint", pretrained / LAST, *words)
    whole, own = MaelmModel.from_pretrained(str(folder)), MaelmModel.from_pretrained(str(pretrained), LAST)
    assert whole.model.decoder.attention == attention
    assert whole.fill_mask(TEXT, topk=5) == own.fill_mask(TEXT, topk=5)
