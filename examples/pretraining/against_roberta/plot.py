"""Plot validation loss and accuracy over updates.

python plot.py OUTPUT    # the folder of run.sh; writes curves.png there
"""

import json
import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def validation_of(log: str) -> list[dict[str, float]]:
    """Validation metrics of fairseq-train output written with --log-format json, one row for each validation."""
    rows = [json.loads(line) for line in re.findall(r"\| valid \| (\{.*\})", log)]
    return [
        {
            "updates": int(row["valid_num_updates"]),
            "loss": float(row["valid_loss"]),
            "accuracy": float(row["valid_accuracy"]),
        }
        for row in rows
    ]


STAGES = {1: "8 tokens", 2: "32 tokens", 3: "32 tokens, falling rate"}


def curves_of(folder: Path, stage: int) -> dict[str, list[dict[str, float]]]:
    """Both models' validations in a stage."""
    return {
        "MAE-LM": validation_of((folder / f"maelm_{stage}.out").read_text()),
        "fairseq RoBERTa": json.loads((folder / f"roberta_{stage}.json").read_text()),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    stages = {stage: curves_of(folder, stage) for stage in STAGES}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
    for axis, key, label in zip(axes, ("loss", "accuracy"), ("loss (bits per masked token)", "accuracy (%)")):
        before = 0
        for stage, curves in stages.items():
            for (name, rows), style, color in zip(curves.items(), ("o-", "s--"), ("#0072b2", "#d55e00")):
                updates = [before + row["updates"] for row in rows]
                # One entry of the legend for each model, not for each stage.
                text = None if before else name
                axis.plot(updates, [row[key] for row in rows], style, color=color, markersize=4, label=text)
            start, before = before, before + max(row["updates"] for rows in curves.values() for row in rows)
            axis.axvline(before, color="#666666", linewidth=0.8)
            middle = ((start + before) / 2, 1.02)
            axis.annotate(STAGES[stage], middle, xycoords=("data", "axes fraction"), ha="center", fontsize="small")
        axis.set_xlabel("updates")
        axis.set_ylabel(f"validation {label}")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(folder / "curves.png", dpi=120)
    for stage, curves in stages.items():
        for name, rows in curves.items():
            for row in rows:
                metrics = f"{row['updates']:6d} {row['loss']:8.3f} bits {row['accuracy']:6.2f} %"
                print(f"{name:16s} {STAGES[stage]:24s} {metrics}")


if __name__ == "__main__":
    main()
