"""The results of pretrainings in a JSON-lines file: the page needs nothing else, so checkpoints can go."""

import base64
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import study
from plan import Pretraining, folder_name

from fairseq_maelm.files.atomic import parse_json, read_json, write_bytes
from fairseq_maelm.sweep.log import training_seconds
from fairseq_maelm.sweep.programs import is_finished

PRETRAINING = "pretraining"


class Records:
    """A file with a JSON object for each pretraining, which can be kept and taken to another machine.

    The line named "study" has facts about the whole study: "vocabulary" and "tokens" of the text, and the "chosen"
    settings, as far as they are known. ``runs`` is the folder of the programs, with a folder for each pretraining.
    """

    def __init__(self, path: Path, runs: Path) -> None:
        self.path, self.runs = path, runs

    def _all(self) -> dict[str, dict[str, Any]]:
        """Return name -> record without its name."""
        lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        return {record.pop("name"): record for record in (parse_json(line, self.path) for line in lines)}

    def study(self) -> dict[str, Any]:
        """Return "vocabulary" and "tokens" of the text, and the "chosen" settings, as far as they are known."""
        return self._all().get("study", {})

    def about(self, fact: str, stage: str) -> Any:
        """Return a fact about the whole study; a ValueError names the stage that finds it out."""
        known = self.study()
        if fact not in known:
            raise ValueError(f"{self.path} lacks {fact}: run the stage {stage} first")
        return known[fact]

    def add_to_study(self, **facts: Any) -> None:
        """Keep facts about the whole study; a ValueError says that the text is not that of earlier results."""
        known = self.study()
        of_text = {name: facts[name] for name in ("vocabulary", "tokens") if name in facts}
        if not of_text.items() <= {**facts, **known}.items():
            raise ValueError(f"{self.path} holds the results of another text: {known} then, {of_text} now")
        self._write("study", {**known, **facts})

    def read(self, run: Pretraining) -> dict[str, Any]:
        """Return the results of a pretraining by name, none before its end; those of other options are a ValueError."""
        record = self._all().get(run.name) or {"options": run.options, "results": {}}
        if (found := record["options"]) != run.options:
            raise ValueError(
                f"{run.name} in {self.path} is of a pretraining with other options: {found}, not {run.options}"
            )
        results: dict[str, Any] = record["results"]
        return results

    def update(self, run: Pretraining) -> dict[str, Any]:
        """Return the results of a pretraining, with what its programs have written since the last time."""
        earlier = self.read(run)
        found = self._found(run, earlier)
        if found:
            own = {"row": run.row, "budget": run.budget, "seed": run.seed, "trial": run.trial, "options": run.options}
            self._write(run.name, {**own, "results": {**earlier, **found}})
        return {**earlier, **found}

    def _write(self, name: str, content: dict[str, Any]) -> None:
        records = {**self._all(), name: content}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps({"name": name, **record}) + "\n" for name, record in records.items()]
        write_bytes(self.path, "".join(lines).encode("ascii"))

    def _found(self, run: Pretraining, earlier: Collection[str]) -> dict[str, Any]:
        folder = self.runs / run.name
        markers = {str(path.parent.relative_to(folder)): path for path in sorted(folder.glob("**/result.json"))}
        own = {PRETRAINING if name == "." else name: path for name, path in markers.items() if is_finished(path)}
        return {name: read_json(path) for name, path in own.items() if PRETRAINING in own and name not in earlier}


def pretrained(log: Path) -> dict[str, Any]:
    """Return the result of a pretraining: its last loss on held-out text, all of them by updates, and its seconds."""
    losses = {str(updates): loss for updates, loss in study.losses(log).items()}
    return {**study.last_loss(log), "losses": losses, "seconds": training_seconds(log)}


def predicted(metrics: Path, predictions: Path, labels: Path | None) -> dict[str, Any]:
    """Return the scores of a fine-tuned model and, with a file of labels, which of them are predicted."""
    return {**read_json(metrics), **({"correct": correct(predictions, labels)} if labels else {})}


def correct(predictions: Path, labels: Path) -> str:
    """Return which labels were predicted: the number of examples, a colon, and a bit for each in base 64."""
    with open(labels, encoding="utf-8") as lines:
        wanted = [line.rstrip("\n").split("\t")[-1] for line in lines]
    with open(predictions, encoding="utf-8") as lines:
        predicted = [line.rstrip("\n").split("\t")[0] for line in lines][1:]
    bits = np.packbits([one == other for one, other in zip(predicted, wanted, strict=True)])
    return f"{len(wanted)}:{base64.b64encode(bits.tobytes()).decode()}"


def correct_examples(text: str) -> np.ndarray:
    """Return what ``correct`` wrote, <float64>[number of examples]: 1 for each label that was predicted."""
    count, _, bits = text.partition(":")
    return np.unpackbits(np.frombuffer(base64.b64decode(bits), np.uint8), count=int(count)).astype(float)


def last_layer(rows: Iterable[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """Return the row of the last layer that has these entries, or raise a ValueError."""
    found = [row for row in rows if row["layer"] is not None and wanted.items() <= row.items()]
    if not found:
        raise ValueError(f"no row of the results has {wanted}")
    return max(found, key=lambda row: row["layer"])


def measured(own: Mapping[str, Any], log: Path, output: Path) -> dict[str, float]:
    """Return the numbers of a measurement, effective ranks or percent, from the log and folder of its command.

    ``own`` is its declaration in the plan.
    """
    if own["command"] == "score":
        return {own["name"]: 100 * float(study.last_json(log)["overall"]["sum"])}
    results = parse_json((output / "results.json").read_bytes(), output / "results.json")
    whole = last_layer(results[0]["ranks"], condition="whole", token_set="real")
    masked = last_layer(results[0]["ranks"], condition="masked", token_set="all")
    return {
        "rank without masks": float(whole["effective_rank"]),
        "rank of all tokens, with masks": float(masked["effective_rank"]),
    }


def fine_tunings(results: Iterable[str], task: str) -> list[str]:
    """Return the names of a task's fine-tunings among those of results."""
    return [name for name in results if name.startswith(f"{folder_name(task)}/seed_")]
