"""``maelm probe``: states compared with the hub's, the command from inputs to the table, interruption, refusals."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from end_to_end.toy import TOPICS, sentence, write_corpus
from scipy.stats import spearmanr

from fairseq_maelm import cli
from fairseq_maelm.analysis.checkpoints import CheckpointEncoder
from fairseq_maelm.analysis.probes import measures
from fairseq_maelm.analysis.probes.states import FrozenEncoder
from fairseq_maelm.analysis.probes.tasks import RepeatedWords, Repetition, TokenStates
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


def test_rank_and_mean_cosine_are_those_of_the_states() -> None:
    frozen = frozen_encoder()
    rows = TokenStates("tokens", [], [text.split() for text in TEXTS], 0.9).measure(frozen)
    for layer in frozen.layers:
        states = torch.cat([states_of_hub(text)[layer] for text in TEXTS]).double().numpy()
        energy = np.cumsum(np.linalg.svd(states, compute_uv=False) ** 2)
        unit = states / np.linalg.norm(states, axis=1, keepdims=True)
        cosines = (unit @ unit.T)[~np.eye(len(unit), dtype=bool)]
        found = {row["measure"]: row["value"] for row in rows if row["layer"] == layer}
        assert found["effective rank"] == np.argmax(energy >= 0.9 * energy[-1]) + 1
        assert found["mean cosine"] == pytest.approx(cosines.mean(), abs=1e-4)


class CopyingEncoder:
    """Predicts "rope" (tokens 10 and 11) at the mask if the text contains it elsewhere."""

    max_length, width, num_layers = 40, 4, 1
    words = {"rope": [10, 11]}

    def __init__(self) -> None:
        self.vocabulary = CheckpointEncoder(CHECKPOINT, DATA).vocabulary

    def encode_line(self, line: str) -> list[int]:
        return self.words.get(line.strip(), [20])

    def masked_logits(self, sequences: Sequence[np.ndarray]) -> torch.Tensor:
        rows = []
        for sequence in sequences:
            for copied in (10, 11):
                rows.append(torch.zeros(32))
                rows[-1][copied if copied in sequence else 20] = 100.0
            assert (sequence == self.vocabulary.mask).sum() == 2
        return torch.stack(rows)


def test_share_of_repeated_words_matched() -> None:
    repeated, replaced = ["a", "rope", "a", "a", "rope"], ["a", "rope", "a", "a", "sail"]
    # In the second case there is no repetition; in the third, one occurrence is in another sequence.
    cases = [Repetition(repeated, 1, replaced), Repetition(replaced, 1, replaced)]
    rest = [*["a"] * 50, "rope"]
    cases.append(Repetition([*repeated, *rest], 1, [*replaced, *rest]))
    rows = RepeatedWords("repeated-words", [], cases).measure(frozen_encoder(CopyingEncoder()))
    assert [row["value"] for row in rows[:2]] == [0.5, 0.0]
    # 100 / ln(2) bits for each of the two tokens of one case in two.
    assert rows[2]["value"] == pytest.approx(100 / np.log(2), rel=1e-4)


# The command


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small input of each kind; sentences and words of one topic are similar."""
    folder, generator = tmp_path_factory.mktemp("inputs"), random.Random(1)

    def pair() -> tuple[float, str, str]:
        topics = generator.choices(sorted(TOPICS), k=2)
        return 5.0 * (topics[0] == topics[1]), *(sentence(topic, generator) for topic in topics)

    for part in ("2012/one", "2012/two", "2013/one"):
        path = folder / "sts" / f"{part}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            "".join(f"{score}\t{first}\t{second}\n" for score, first, second in (pair() for _ in range(30)))
        )
    (folder / "words").mkdir()
    nouns = [words[0] for words in TOPICS.values()]
    pairs = [(a, b, float(x is y)) for x in nouns for y in nouns for a, b in zip(x[:2], y[2:])]
    (folder / "words" / "nouns.tsv").write_text("".join(f"{a}\t{b}\t{score}\n" for a, b, score in pairs))
    for split, count in (("train", 60), ("dev", 40)):
        chosen = generator.choices(sorted(TOPICS), k=count)
        lines = [f"{sentence(topic, generator)}\t{topic}\n" for topic in chosen]
        (folder / f"topics.{split}.tsv").write_text("".join(lines))
        lines = [f"{first}\t{second}\t{score}\n" for score, first, second in (pair() for _ in range(count))]
        (folder / f"scores.{split}.tsv").write_text("".join(lines))
        (folder / f"pairs.{split}.tsv").write_text(
            "".join(lines).replace("0.0\n", "other\n").replace("5.0\n", "same\n")
        )
        blocks = []
        for topic in chosen:
            words = sentence(topic, generator).split()
            cells = [
                [str(n), word, "_", "NOUN" if len(word) > 4 else "X", *"______"] for n, word in enumerate(words, 1)
            ]
            blocks.append("\n".join("\t".join(each) for each in cells) + "\n\n")
        (folder / f"{split}.conllu").write_text("".join(blocks))
    for name, options in (("topics", ()), ("pairs", ()), ("scores", ("--regression",))):
        tables = ["--train", folder / f"{name}.train.tsv", "--valid", folder / f"{name}.dev.tsv"]
        words = ["prepare", "sentences", "--vocabulary", DATA, *tables, "--output", folder / name, *options]
        cli.main([str(word) for word in words])
    write_corpus(folder / "text.txt", documents=30)
    return folder


def words_of(inputs: Path, output: Path, *options: object) -> list[str]:
    probed = ["--sts", inputs / "sts", "--words", inputs / "words", "--tasks", inputs / "topics", inputs / "pairs"]
    probed += [inputs / "scores", "--treebank", inputs / "train.conllu", inputs / "dev.conllu"]
    probed += ["--text", inputs / "text.txt", "--vocabulary", DATA, "--device", "cpu", "--stretches", 40]
    return [str(word) for word in ["probe", "--output", output, *probed, *options]]


TASKS = ["sts-2012", "sts-2013", "words", "topics", "pairs", "scores", "tagging", "tokens", "search", "repeated-words"]


def value(result: dict[str, Any], *wanted: Any) -> float:
    """Return the value of a set, measure, layer, pooling and whitening."""
    keys = ("set", "measure", "layer", "pooling", "whitened")
    (found,) = (row["value"] for row in result["rows"] if tuple(row[key] for key in keys) == wanted)
    return float(found)


def test_from_inputs_to_the_table_with_an_interruption(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output, models = tmp_path / "probes", [f"--checkpoint=MAE-LM={KEPT}", f"--random-weights=random={CHECKPOINT}"]
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as caught:
        patch.setattr(TokenStates, "measure", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        cli.main(words_of(inputs, output, *models))
    assert caught.value.code == 130 and "resumes after the last finished task" in capsys.readouterr().err
    folder = output / "results" / "MAE-LM"
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.json") if path.stem in TASKS}
    assert set(before) == {f"{name}.json" for name in TASKS[:7]} and not (output / "results.json").exists()

    cli.main(words_of(inputs, output, *models))
    assert capsys.readouterr().out == f"{output / 'probes.md'}\n"
    assert before == {name: (folder / name).stat().st_mtime_ns for name in before}, "a finished task was run again"
    trained, untrained = json.loads((output / "results.json").read_text())["models"]
    assert (trained["name"], trained["random_weights"], untrained["random_weights"]) == ("MAE-LM", False, True)
    assert list(trained["seconds"]) == list(untrained["seconds"]) == TASKS
    table = (output / "probes.md").read_text()
    assert "MAE-LM" in table and "random" in table and "effective rank" in table
    for result in (trained, untrained):
        assert all(np.isfinite(row["value"]) for row in result["rows"])
        assert {row["layer"] for row in result["rows"]} == {None, *range(result["num_layers"] + 1)}
        # The embedding of the first token is the same in every text.
        assert not any(row["layer"] == 0 and row["pooling"] == "first" for row in result["rows"])

    # Against the hub, and scipy's plain computation.
    parts = [[line.split("\t") for line in (inputs / "sts" / "2012" / f"{part}.tsv").read_text().splitlines()]
             for part in ("one", "two")]  # fmt: skip
    texts = [cell for part in parts for row in part for cell in row[1:]]
    vectors = torch.from_numpy(frozen_encoder(max_length=128).pooled(texts, "texts")[-1, 0]).double()
    cosines = torch.nn.functional.cosine_similarity(vectors[::2], vectors[1::2]).numpy()
    scores = np.array([float(row[0]) for part in parts for row in part])
    expected = spearmanr(cosines, scores).statistic
    last = trained["num_layers"], "mean", False
    assert value(trained, "sts-2012", "Spearman", *last) == pytest.approx(expected, abs=1e-3)
    halves = [spearmanr(cosines[part], scores[part]).statistic for part in (slice(0, 30), slice(30, 60))]
    assert value(trained, "sts-2012", "Spearman, mean of parts", *last) == pytest.approx(np.mean(halves), abs=1e-3)
    # The topic of a sentence is in its words, and pretraining has learned which words go together.
    chance = value(trained, "topics", "most frequent label", None, None, None)
    assert value(trained, "topics", "logistic regression", 0, "mean", False) > chance + 0.2
    assert value(trained, "repeated-words", "matched", None, None, None) <= 1


def refuse_to_measure(*_: Any) -> None:
    raise AssertionError("something was measured")


def test_results_are_kept_apart(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = ["--vocabulary", DATA, "--device", "cpu", "--output", tmp_path / "out"]
    words = [str(word) for word in ["probe", "--words", inputs / "words", *known]]
    cli.main([*words, f"--checkpoint=a={CHECKPOINT}"])
    monkeypatch.setattr(measures, "spearman", refuse_to_measure)
    with pytest.raises(SystemExit, match="other settings.*seed"):
        cli.main([*words, f"--checkpoint=a={CHECKPOINT}", "--seed", "2"])
    with pytest.raises(SystemExit, match="results of a different model"):
        cli.main([*words, f"--random-weights=a={CHECKPOINT}"])
    cli.main([*words, f"--checkpoint=a={CHECKPOINT}"])
    other = tmp_path / "words"
    other.mkdir()
    (other / "nouns.tsv").write_text("a\tb\t1\na\tc\t2\n")
    words[words.index("--words") + 1] = str(other)
    with pytest.raises(SystemExit, match="results of a different input"):
        cli.main([*words, f"--checkpoint=a={CHECKPOINT}"])


@pytest.mark.parametrize(
    ("option", "content", "message"),
    [
        ("--sts", None, "there is no .tsv file"),
        ("--sts", "1.0\tone text\n", r"x\.tsv:1 has no column 2 \(counted from 0\)"),
        (
            "--sts",
            "1.0\ta\tb\nmuch\tc\td\n",
            r"x\.tsv:2 has the score 'much', which is not .* must be score, tab, sentence",
        ),
        ("--sts", "1.0\ta\t \n", "an empty sentence"),
        ("--sts", "1.0\ta\tb\n", "a correlation needs two"),
        ("--words", "1.0\ta\tb\n", "each line must be word, tab, word, tab, score"),
        ("--tasks", None, "is not a task folder of `maelm prepare sentences`"),
        ("--text", "too few words\n", "must have at least two passages of 64 words"),
        ("--treebank", "1\tword\n", "CoNLL-U has 10"),
    ],
)
def test_wrong_inputs_are_refused_before_anything_is_written(
    option: str, content: Any, message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    if content is not None:
        (folder / "x.tsv").write_text(content)
    given = {"--text": [folder / "x.tsv"], "--treebank": [folder / "x.tsv"] * 2}.get(option, [folder])
    known = ["probe", f"--checkpoint=a={CHECKPOINT}", "--vocabulary", DATA, "--output", tmp_path / "out"]
    with pytest.raises(SystemExit, match=message):
        cli.main([str(word) for word in [*known, option, *given]])
    assert not (tmp_path / "out").exists()
