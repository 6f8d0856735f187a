"""``maelm probe``: states compared with the hub's, the command from inputs to the table, interruption, refusals."""

import json
import logging
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from end_to_end.toy import TOPICS, sentence
from sklearn.linear_model import LogisticRegression

from fairseq_maelm import cli
from fairseq_maelm.analysis.checkpoints import CheckpointEncoder
from fairseq_maelm.analysis.probes import inputs as probe_inputs
from fairseq_maelm.analysis.probes import tasks
from fairseq_maelm.analysis.probes.states import FrozenEncoder
from fairseq_maelm.models import hub

KEPT = Path(__file__).resolve().parents[1] / "end_to_end" / "kept"
DATA = KEPT / "data"
CHECKPOINT = KEPT / "checkpoint_last.pt"
TEXTS = ["The sailor takes the rope.", "judge", "Every morning a cook bakes at the oven; the knife is old."]


def frozen_encoder(encoder: Any = None, **changes: Any) -> FrozenEncoder:
    encoder = encoder or CheckpointEncoder(CHECKPOINT, DATA)
    layers = list(range(encoder.num_layers + 1))
    running = {"max_length": 40, "batch_tokens": 64, "precision": "fp32", "device": "cpu", **changes}
    return FrozenEncoder("model", encoder, layers, **running)


def states_of_hub(text: str) -> torch.Tensor:
    """<float>[layers, S, D]."""
    interface = hub.load(str(KEPT), CHECKPOINT.name, str(DATA))
    with torch.inference_mode():
        return torch.stack(list(interface.extract_features(interface.encode(text), return_all_hiddens=True)))[:, 0]


def test_pooled_states_are_those_of_the_hub() -> None:
    pooled = frozen_encoder().pooled(TEXTS, "texts")
    words = frozen_encoder().first_subwords([text.split() for text in TEXTS], "words")
    first = 0
    for number, text in enumerate(TEXTS):
        expected = states_of_hub(text)
        assert np.allclose(pooled[:, 0, number], expected[:, 1:-1].mean(dim=1), atol=1e-5)
        assert np.allclose(pooled[:, 1, number], expected[:, 0], atol=1e-5)
        encoder = frozen_encoder().encoder
        pieces = [len(encoder.encode_line(word)) for word in text.split()]
        starts = 1 + np.cumsum([0, *pieces[:-1]])
        assert np.allclose(words[:, first : first + len(pieces)], expected[:, starts], atol=1e-5)
        first += len(pieces)


def test_precision_changes_states_a_little() -> None:
    exact, rough = (frozen_encoder(precision=each).pooled(TEXTS, "texts") for each in ("fp32", "bf16"))
    assert rough.dtype == np.float32 and not np.array_equal(exact, rough)
    assert np.corrcoef(exact.ravel(), rough.ravel())[0, 1] > 0.999


def test_random_weights_are_those_of_their_seed() -> None:
    tokens = torch.tensor([[0, 5, 6, 7, 2]])
    one, again, other, trained = (CheckpointEncoder(CHECKPOINT, DATA, seed) for seed in (1, 1, 2, None))
    with torch.inference_mode():
        expected, *found = (each.hidden_states(tokens)[-1] for each in (one, again, other, trained))
    assert [torch.equal(expected, states) for states in found] == [True, False, False]


def test_texts_are_cut_and_sentences_split_and_no_word_is_lost() -> None:
    frozen = frozen_encoder(max_length=8)
    assert [len(frozen.encode(text)) for text in TEXTS] == [8, len(states_of_hub("judge")[0]), 8]
    words = TEXTS[2].split()
    encoded = frozen.encode_words([words, [""], words[:1]])
    assert all(len(sequence) <= 8 for sequence in encoded.sequences) and len(encoded.sequences) > 3
    pieces = [encoded.sequences[number][start:end].tolist() for number, start, end in encoded.places]
    assert pieces == [frozen.encoder.encode_line(word) for word in [*words, "", words[0]]]
    # An empty word has no tokens and is represented by the token after it, the end symbol.
    number, start, end = encoded.places[len(words)]
    assert start == end and encoded.sequences[number].tolist()[start] == 2


# The probes


def rows(count: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


def test_the_probe_is_scikit_learn_s() -> None:
    train, test = rows(300, 10), rows(2500, 10, 1)
    labels, expected = (np.argmax(each[:, :3] + each[:, 3:6], axis=1) for each in (train, test))
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    plain = LogisticRegression(C=tasks.INVERSE_PENALTY, max_iter=1000).fit((train - mean) / deviation, labels)
    found = tasks.logistic_regression(train, labels, test, expected)
    assert found == pytest.approx(plain.score((test - mean) / deviation, expected), abs=2e-3)
    assert tasks.most_frequent(np.array([2, 1, 1]), np.array([1, 2, 1, 1])) == 0.75


def test_a_probe_that_was_stopped_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(tasks, "_ITERATIONS", 1)
    states, labels = rows(60, 5), np.arange(60) % 2
    with caplog.at_level(logging.INFO):
        tasks.logistic_regression(states, labels, states, labels)
    assert "stopped after 1 iterations" in caplog.text


# The command


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small input of each kind; sentences and words of one topic are similar."""
    folder, generator = tmp_path_factory.mktemp("inputs"), random.Random(1)

    def pair() -> tuple[str, str, str]:
        topics = generator.choices(sorted(TOPICS), k=2)
        return "same" if topics[0] == topics[1] else "other", *(sentence(topic, generator) for topic in topics)

    for split, count in (("train", 60), ("dev", 40)):
        chosen = generator.choices(sorted(TOPICS), k=count)
        lines = [f"{sentence(topic, generator)}\t{topic}\n" for topic in chosen]
        (folder / f"topics.{split}.tsv").write_text("".join(lines))
        lines = [f"{first}\t{second}\t{label}\n" for label, first, second in (pair() for _ in range(count))]
        (folder / f"pairs.{split}.tsv").write_text("".join(lines))
        blocks = []
        for topic in chosen:
            words = sentence(topic, generator).split()
            cells = [
                [str(n), word, "_", "NOUN" if len(word) > 4 else "X", *"______"] for n, word in enumerate(words, 1)
            ]
            blocks.append("\n".join("\t".join(each) for each in cells) + "\n\n")
        (folder / f"{split}.conllu").write_text("".join(blocks))
    for name in ("topics", "pairs"):
        tables = ["--train", folder / f"{name}.train.tsv", "--valid", folder / f"{name}.dev.tsv"]
        words = ["prepare", "sentences", "--vocabulary", DATA, *tables, "--output", folder / name]
        cli.main([str(word) for word in words])
    return folder


def words_of(inputs: Path, output: Path, *options: object) -> list[str]:
    probed = ["--tasks", inputs / "topics", inputs / "pairs", "--vocabulary", DATA, "--device", "cpu"]
    probed += ["--treebank", inputs / "train.conllu", inputs / "dev.conllu"]
    return [str(word) for word in ["probe", "--output", output, *probed, *options]]


TASKS = ["topics", "pairs", "tagging"]


def value(result: dict[str, Any], *wanted: Any) -> float:
    """Return the value of a set, measure, layer and pooling."""
    keys = ("set", "measure", "layer", "pooling")
    (found,) = (row["value"] for row in result["rows"] if tuple(row[key] for key in keys) == wanted)
    return float(found)


def test_from_inputs_to_the_table_with_an_interruption(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, models = tmp_path / "probes", [f"--checkpoint=MAE-LM={KEPT}", f"--random-weights=random={CHECKPOINT}"]
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as caught:
        patch.setattr(probe_inputs, "features_of_words", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        cli.main(words_of(inputs, output, *models))
    assert caught.value.code == 130 and "resumes after the last finished task" in capsys.readouterr().err
    folder = output / "results" / "MAE-LM"
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json") if path.stem in TASKS}
    assert set(before) == {f"{name}.json" for name in TASKS[:2]} and not (output / "results.json").exists()

    cli.main(words_of(inputs, output, *models))
    assert capsys.readouterr().out == f"{output / 'probes.md'}\n"
    assert before == {name: (folder / name).stat().st_mtime_ns for name in before}, "a finished task was run again"
    trained, untrained = json.loads((output / "results.json").read_text())["models"]
    assert (trained["name"], trained["random_weights"], untrained["random_weights"]) == ("MAE-LM", False, True)
    assert list(trained["seconds"]) == list(untrained["seconds"]) == TASKS
    table = (output / "probes.md").read_text()
    assert "MAE-LM" in table and "random" in table and "logistic regression" in table
    for result in (trained, untrained):
        assert all(np.isfinite(row["value"]) for row in result["rows"])
        assert {row["layer"] for row in result["rows"]} == {None, *range(result["num_layers"] + 1)}
        # The embedding of the first token is the same in every text.
        assert not any(row["layer"] == 0 and row["pooling"] == "first" for row in result["rows"])

    # The topic of a sentence is in its words, and pretraining has learned which words go together.
    chance = value(trained, "topics", "most frequent label", None, None)
    assert value(trained, "topics", "logistic regression", 0, "mean") > chance + 0.2


def refuse_to_measure(*_: Any) -> None:
    raise AssertionError("something was measured")


def test_results_are_kept_apart(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = ["--vocabulary", DATA, "--device", "cpu", "--output", tmp_path / "out"]
    words = [str(word) for word in ["probe", "--tasks", inputs / "topics", *known]]
    cli.main([*words, f"--checkpoint=a={CHECKPOINT}"])
    monkeypatch.setattr(tasks, "logistic_regression", refuse_to_measure)
    with pytest.raises(SystemExit, match="results of a different model"):
        cli.main([*words, f"--random-weights=a={CHECKPOINT}"])
    cli.main([*words, f"--checkpoint=a={CHECKPOINT}"])
    other = tmp_path / "topics"
    shutil.copytree(inputs / "pairs", other)
    words[words.index("--tasks") + 1] = str(other)
    with pytest.raises(SystemExit, match="results of a different input"):
        cli.main([*words, f"--checkpoint=a={CHECKPOINT}"])


def test_wrong_inputs_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    known = ["probe", f"--checkpoint=a={CHECKPOINT}", "--vocabulary", DATA, "--output", tmp_path / "out"]
    with pytest.raises(SystemExit, match="is not a task folder of `maelm prepare sentences`"):
        cli.main([str(word) for word in [*known, "--tasks", tmp_path]])
    assert not (tmp_path / "out").exists()
