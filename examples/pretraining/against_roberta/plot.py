"""Plot validation loss and accuracy over updates.

python plot.py maelm.log roberta_scores.json curves.png
"""

import json
import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def validation_of(log: str) -> list[dict[str, float]]:
    """Validation figures of a fairseq log written with --log-format json, one row for each validation."""
    rows = [json.loads(line) for line in re.findall(r"\| valid \| (\{.*\})", log)]
    return [
        {
            "updates": int(row["valid_num_updates"]),
            "loss": float(row["valid_loss"]),
            "accuracy": float(row["valid_accuracy"]),
        }
        for row in rows
    ]


def main() -> None:
    log, scores, figure_file = map(Path, sys.argv[1:4])
    curves = {"MAE-LM": validation_of(log.read_text()), "fairseq RoBERTa": json.loads(scores.read_text())}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6))
    for axis, key, label in zip(axes, ("loss", "accuracy"), ("loss (bits per masked token)", "accuracy (%)")):
        for (name, rows), style in zip(curves.items(), ("o-", "s--")):
            axis.plot([row["updates"] for row in rows], [row[key] for row in rows], style, label=name)
        axis.set_xlabel("updates")
        axis.set_ylabel(f"validation {label}")
        axis.grid(alpha=0.3)
        axis.legend()
    figure.tight_layout()
    figure.savefig(figure_file, dpi=120)
    for name, rows in curves.items():
        for row in rows:
            print(f"{name:16s} {row['updates']:6d} {row['loss']:8.3f} bits {row['accuracy']:6.2f} %")


if __name__ == "__main__":
    main()
