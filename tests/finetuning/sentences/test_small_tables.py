"""What makes a table of a few hundred rows work: a head on the mean that starts from the frozen encoder's states."""

import argparse
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from support import model_of, random_sequences
from torch import Tensor

from fairseq_maelm.batch import pad_rows
from fairseq_maelm.checkpoints.fit import register_heads
from fairseq_maelm.finetuning.sentences.frozen_start import fit, fit_head, mix_with_start
from fairseq_maelm.models.labels import Classes, Numbers, Sets

LENGTHS = [9, 4, 7, 12, 5, 9]


def padded() -> Tensor:
    rows = random_sequences(LENGTHS)
    return torch.from_numpy(pad_rows(rows, np.array(LENGTHS), 1))


@pytest.mark.parametrize("options", [{}, {"layer": "modern", "positions": "rotary"}], ids=["post_norm", "modern"])
def test_a_head_reads_the_mean_of_all_tokens_and_checkpoints_tell_it(options: dict[str, Any]) -> None:
    model = model_of(**options).eval()
    model.register_classification_head("topic", 3, pooling="mean")
    head, tokens = model.classification_heads["topic"], padded()
    states, _ = model.extract_features(tokens)
    means = torch.stack([row[:length].mean(dim=0) for row, length in zip(states, LENGTHS)])
    scores, extra = model(tokens, classification_head_name="topic", return_all_hiddens=True)
    torch.testing.assert_close(scores, head.out_proj(head.transform(means)), rtol=1e-5, atol=1e-6)
    assert len(extra["inner_states"]) == 1 + len(model.encoder.layers)
    other = model_of(**options)
    register_heads(other, model.state_dict())
    assert other.classification_heads["topic"].pooling == "mean"
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other.eval()(tokens, classification_head_name="topic")[0], scores)


CLASSES = Classes(("a", "b"))


class Rows:
    """A dataset of 240 sequences of equal length."""

    seed, sizes, labels = 1, np.full(240, 8), CLASSES

    def __init__(self, targets: Any = None) -> None:
        self.targets = targets
        self.tokens = torch.from_numpy(np.stack(random_sequences([8] * 240)))

    def __len__(self) -> int:
        return 240

    def collate(self, indices: np.ndarray) -> dict[str, Any]:
        return {"net_input": {"src_tokens": self.tokens[indices]}}


@pytest.mark.parametrize("layer", ["post_norm", "modern"])
@pytest.mark.parametrize("kind", ["classes", "two classes", "numbers", "sets", "one class"])
def test_a_head_starts_from_what_the_frozen_states_tell(kind: str, layer: str) -> None:
    options = {"layer": "modern", "positions": "rotary"} if layer == "modern" else {}
    model, rows = model_of(**options), Rows()
    model.eval()
    states, _ = model.extract_features(rows.tokens)
    direction = states.detach().mean(dim=1) @ torch.randn(32, generator=torch.Generator().manual_seed(2))
    rank = direction.argsort().argsort().numpy()
    targets = {
        "classes": rank // 80,
        "two classes": rank // 120,
        "numbers": direction.numpy().astype(np.float32),
        "sets": np.stack([rank >= 120, rank < 80, rank >= 0], axis=1),
        "one class": np.zeros(240, dtype=np.int64),
    }[kind]
    outputs = {"classes": 3, "two classes": 2, "numbers": 1, "sets": 3, "one class": 2}[kind]
    model.register_classification_head("topic", outputs, pooling="mean")
    dataset: Any = rows
    rows.targets = targets
    fit_head(model, model.classification_heads["topic"], dataset, torch.device("cpu"))
    scores = model(rows.tokens, classification_head_name="topic")[0].detach()
    if kind == "numbers":
        assert np.corrcoef(scores[:, 0].numpy(), targets)[0, 1] > 0.9
    elif kind == "sets":
        assert ((scores.numpy() >= 0) == targets).mean() > 0.9
    else:
        assert (scores.argmax(dim=1).numpy() == targets).mean() > 0.75
    assert scores.isfinite().all()


def test_rare_classes_start_as_heavy_as_they_are_in_training() -> None:
    model, rows = model_of(), Rows((np.arange(240) % 10 == 0).astype(np.int64))
    means = {}
    for weights in (None, [240 / 2 / 216, 240 / 2 / 24]):
        model.register_classification_head("topic", 2, pooling="mean")
        dataset: Any = rows
        head = model.classification_heads["topic"]
        fit_head(model, head, dataset, torch.device("cpu"), weights)
        scores = model(rows.tokens, classification_head_name="topic")[0].detach()
        means[bool(weights)] = float(scores.softmax(dim=1)[:, 1].mean())
        # The mixture measures what training minimizes.
        targets = torch.from_numpy(rows.targets)
        losses = torch.nn.functional.cross_entropy(scores, targets, reduction="none")
        expected = float((losses * torch.tensor(weights or [1.0, 1.0])[targets]).sum())
        found = fit(scores, targets, CLASSES, weights)
        assert found.loss == pytest.approx(expected, rel=1e-4) if found.temperature == 1 else found.loss < expected
    # The labels have nothing to do with the tokens.
    assert means == {False: pytest.approx(0.1, abs=0.03), True: pytest.approx(0.5, abs=0.1)}


def test_a_mixture_worse_than_an_end_is_not_kept() -> None:
    model, rows = model_of(), Rows()
    model.register_classification_head("topic", 2, pooling="mean")
    head, dataset = model.classification_heads["topic"], cast(Any, rows)
    first = model.extract_features(rows.tokens)[0].detach().mean(dim=1)[:, 0]
    rows.targets = (first > first.median()).numpy().astype(np.int64)
    fit_head(model, head, dataset, torch.device("cpu"))
    start = {name: each.detach().clone() for name, each in model.named_parameters()}
    # tanh is odd, so that the head computes the same with other signs; between both it knows nothing.
    with torch.no_grad():
        for weight in (*head.dense_layer.parameters(), head.out_proj.weight):
            weight.neg_()

    def scores(model: Any, batch: dict[str, Any]) -> Tensor:
        found: Tensor = model(**batch["net_input"], classification_head_name="topic")[0].detach()
        return found

    whole, targets = rows.collate(np.arange(240)), torch.from_numpy(rows.targets)
    loss = fit(scores(model, whole), targets, CLASSES).loss
    mix_with_start(SimpleNamespace(head="topic", scores=scores), model, start, dataset)
    assert loss < 240 * np.log(2) / 2
    assert fit(scores(model, whole), targets, CLASSES).loss == pytest.approx(loss, rel=1e-3)


def last(words: list[str], name: str) -> str | None:
    """The value of an option, of which the last one counts; None without the option."""
    return next((value for option, value in reversed(list(zip(words, [*words[1:], ""]))) if option == name), None)


def run_words_of(folder: Path, monkeypatch: pytest.MonkeyPatch, examples: int, valid: int, **changes: Any) -> list[str]:
    from fairseq_maelm.files.atomic import write_json
    from fairseq_maelm.launch import finetuning
    from fairseq_maelm.launch.machine import Machine
    from fairseq_maelm.launch.recipes import FineTuningRecipe, read_recipe

    write_json(folder / "manifest.json", {"splits": {"valid": {"examples": valid}}})
    encoder = finetuning.Encoder({"encoder-embed-dim": 768, "max-positions": 512}, {}, 0)
    monkeypatch.setattr(finetuning, "read_encoder", lambda checkpoint: encoder)
    monkeypatch.setattr(
        finetuning,
        "parsed_command",
        lambda words, more, owned: SimpleNamespace(
            task=SimpleNamespace(head_start=last([*words, *more], "--head-start"))
        ),
    )
    monkeypatch.setattr(finetuning, "set_options", lambda config, options: None)
    monkeypatch.setattr(
        finetuning,
        "count_updates",
        lambda config, sizes, encoder: finetuning.Counted(examples, {size: -(-examples // size) for size in sizes}),
    )
    names = ("lr", "epochs", "batch_size", "warm_up", "metric", "patience", "class_weights", "recipe", "pooling")
    settings = dict.fromkeys(names)
    args = argparse.Namespace(
        **{**settings, "fairseq_options": [], **changes}, checkpoint="c.pt", task=folder, output=Path("out"), seed=1
    )
    recipe = read_recipe(Path(changes.get("recipe") or "sentences"), FineTuningRecipe)
    return finetuning.run_command(args, recipe, Machine(0, "fp32"))[0]


@pytest.mark.parametrize(
    ("examples", "valid", "changes", "expected"),
    [
        (64, 7, {}, {"batch-size": 8, "max-epoch": 38, "max-update": 304, "validate-interval": 38}),
        (162, 18, {}, {"batch-size": 8, "max-epoch": 15, "max-update": 315, "save-interval": 15, "mix-start": True}),
        (1000, 100, {}, {"batch-size": 16, "max-epoch": 5, "max-update": 315, "validate-interval": 5}),
        (2000, 200, {}, {"max-epoch": 5, "max-update": 315, "validate-interval": None, "mix-start": None}),
        (20_000, 2000, {}, {"batch-size": 32, "max-epoch": 3, "max-update": 1875, "validate-interval": None}),
        (162, 18, {"epochs": 2, "batch_size": 32}, {"batch-size": 32, "max-epoch": 2, "pooling": "mean"}),
        (162, 18, {"pooling": "first"}, {"pooling": "first", "head-start": "frozen"}),
        (162, 18, {"patience": 3}, {"max-epoch": 15, "validate-interval": None}),
        (162, 18, {"fairseq_options": ["--head-start", "random"]}, {"head-start": "random", "mix-start": None}),
        (162, 18, {"recipe": "RTE"}, {"batch-size": 32, "max-epoch": 3, "head-start": None, "validate-interval": None}),
    ],
    ids=str,
)
def test_few_rows_get_enough_updates(
    examples: int,
    valid: int,
    changes: dict[str, Any],
    expected: dict[str, int | str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = list(map(str, run_words_of(tmp_path, monkeypatch, examples, valid, **changes)))
    for name, value in expected.items():
        if value is True:
            assert f"--{name}" in words
            continue
        assert last(words, f"--{name}") == (None if value is None else str(value)), name


@pytest.mark.parametrize("kind", ["classes", "sets", "numbers"])
def test_scores_are_judged_as_if_they_had_the_right_size(kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    draw = partial(torch.randn, generator=generator)
    if kind == "numbers":
        targets = 3 + draw(400)
        scores = targets[:, None] + draw(400, 1)
        # The best line through these is flatter than they are.
        scores = (scores - scores.mean()) / 2 + scores.mean()
    else:
        scores = 2 * draw(400, 3)
        drawn = torch.multinomial(scores.softmax(1), 1, generator=generator)[:, 0]
        targets = drawn if kind == "classes" else torch.rand(400, 3, generator=generator) < scores.sigmoid()
    labels = {"classes": Classes(("a", "b", "c")), "sets": Sets(("a", "b", "c")), "numbers": Numbers()}[kind]
    right = fit(scores, targets, labels)
    center = scores.mean() if kind == "numbers" else 0.0
    large = fit(4 * (scores - center) + center, targets, labels)
    assert (right.temperature, large.temperature) == (1, 4)
    assert large.loss == pytest.approx(right.loss, rel=1e-4)
    # Scores that say nothing about the labels are worse at any temperature.
    assert fit(scores.roll(1, dims=0), targets, labels).loss > right.loss + 20
