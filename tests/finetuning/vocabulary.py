"""A vocabulary of pretraining that is there without any preparation."""

from pathlib import Path

VOCABULARY = Path(__file__).resolve().parents[1] / "end_to_end" / "kept" / "data"
