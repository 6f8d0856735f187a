"""The plan of a study, declared in YAML: rows that are pretrainings with other options, or "steps" (see steps.py)."""

import importlib.util
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import yaml

from fairseq_maelm.models.sizes import SIZES
from fairseq_maelm.train_command import number_if_it_is_one

# Head sizes are multiples of this: the fast attention kernels of GPUs want it.
_HEAD_SIZE_MULTIPLE = 8


class Run(NamedTuple):
    """One pretraining.

    Attributes:
        row: of the plan.
        objective: of those that the row has, "" if it names none.
        seed: of weights, order and masks.
        options: of fairseq-train.
        first: share of the text and options of a first part, None without one.
    """

    row: str
    objective: str
    seed: int
    options: dict[str, Any]
    first: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        """Return the name of its folder: the row's, if the plan has one pretraining of each."""
        return f"{self.row}.{self.objective}.seed_{self.seed}" if self.objective else self.row


class Plan:
    """The content of a file such as ablations/plan.yaml, with changes by the command line.

    Args:
        path: path of the file.
        changes: names -> values. A dot leads into a table, as in "fine-tuning.lr". Names that are not at the plan's top
            level are options of all pretrainings. Of a plan with steps, a value that is null becomes the paths that are
            given, with a colon between them.

    Raises:
        ValueError: a plan with steps has no such name.
    """

    def __init__(self, path: Path, changes: dict[str, Any]) -> None:
        self.path, self.content = path, yaml.safe_load(path.read_text(encoding="utf-8"))
        for name, value in changes.items():
            if "steps" in self.content:
                if name not in self.content or isinstance(self.content[name], dict):
                    raise ValueError(f"--set {name}: there is no such setting in {path}")
                given = [Path(part).resolve() for part in str(value).split(":")]
                self.content[name] = str(value) if self.content[name] is not None else given
                continue
            table, _, inner = name.rpartition(".")
            own = self.content.setdefault(table, {}) if table else self.content
            (own if table or name in own else self.content["common"])[inner or name] = number_if_it_is_one(value)
        self.rows: dict[str, dict[str, Any]] = self.content["rows"]

    def options(self, name: str) -> dict[str, Any]:
        """Return the options of a row, without those of an objective."""
        row, options = self.rows[name], dict(self.content["common"])
        for part in row.get("parts", []):
            options |= self.content["parts"][part]
        return {**options, **row.get("options", {}), **scaled_decoder(row, options)}

    def same_rows(self) -> dict[str, str]:
        """Return the rows that are run only if they are named, and the earlier one that computes the same, if any."""
        if "steps" in self.content:
            return {name: "" for name, row in self.rows.items() if (row or {}).get("optional")}
        first: dict[str, str] = {}
        keys = {
            name: str([self.options(name), row.get("first"), row.get("objectives")]) for name, row in self.rows.items()
        }
        found = {name: first.setdefault(key, name) for name, key in keys.items()}
        declared = {name: row["same-as"] for name, row in self.rows.items() if "same-as" in row}
        return {name: earlier for name, earlier in found.items() if earlier != name} | declared

    def runs(self, rows: Sequence[str], seeds: int | None = None) -> Iterator[Run]:
        """Make the pretrainings of rows, the first seeds of all before the second ones."""
        for seed in range(1, max(self.rows[name].get("seeds", 1) for name in rows) + 1):
            for name in rows:
                row = self.rows[name]
                for objective in row.get("objectives", list(self.content.get("objectives", [""]))[:1]):
                    options = {**self.options(name), **self.content.get("objectives", {}).get(objective, {})}
                    if seed <= min(row.get("seeds", 1), seeds or seed):
                        yield Run(name, objective, seed, options, row.get("first"))

    def updates(self, options: dict[str, Any], share: float = 1.0) -> int:
        """Return the updates of a share of a pretraining: as many for all, or those of equally many tokens."""
        if "updates" in self.content:
            return round(share * self.content["updates"])
        return math.ceil(round(share * self.content["tokens"]) / options["max-tokens"])

    @cached_property
    def report(self) -> ModuleType:
        """Return the module with the tables, which has a function ``write`` of the study's folder."""
        path = self.path.parent / self.content["report"]
        specification = importlib.util.spec_from_file_location(path.stem, path)
        assert specification is not None and specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return module


def scaled_decoder(row: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a decoder that a row gives as fractions of the encoder: "decoder-depth", "decoder-width".

    A depth has one layer at least; one that is the size's own adds no option. Of a width the heads are scaled first, at
    least one; the width is the multiple of 8 x heads that is nearest to the fraction of the encoder's, so that heads
    divide it; the feed-forward width keeps its ratio to the width. With 768 and 12 heads 2/3 is 512 with 8 heads.
    """
    size = {name.replace("_", "-"): value for name, value in SIZES[options["arch"]].items()} | options
    found = {}
    if "decoder-depth" in row:
        layers = max(1, round(Fraction(row["decoder-depth"]) * size["encoder-layers"]))
        found = {} if layers == size["decoder-layers"] else {"decoder-layers": layers}
    if "decoder-width" in row:
        fraction, width = Fraction(row["decoder-width"]), size["encoder-embed-dim"]
        heads = max(1, round(fraction * size["encoder-attention-heads"]))
        unit = _HEAD_SIZE_MULTIPLE * heads
        own = unit * max(1, round(fraction * width / unit))
        feed_forward = round(Fraction(own * size["encoder-ffn-embed-dim"], width))
        found |= {"decoder-embed-dim": own, "decoder-ffn-embed-dim": feed_forward, "decoder-attention-heads": heads}
    return found
