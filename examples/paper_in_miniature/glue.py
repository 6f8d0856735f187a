"""GLUE's files as tables of sentences and labels for `maelm prepare sentences`."""

from pathlib import Path
from typing import NamedTuple, Optional

from fairseq_maelm.finetuning import glue_layout
from fairseq_maelm.finetuning.glue_reading import GlueExample, TableReader


class GlueTask(NamedTuple):
    """A metric as in the paper's Table 1, and the scores of its "RoBERTa (Ours)" and MAE-LM of base size."""

    metric: str
    mlm: float
    maelm: float


TASKS = {
    "CoLA": GlueTask("mcc", 64.3, 63.1),
    "SST-2": GlueTask("accuracy", 93.7, 93.8),
    "RTE": GlueTask("accuracy", 75.5, 79.1),
    "STS-B": GlueTask("spearman", 89.5, 90.9),
}


def read_examples(path: Path, name: str) -> list[GlueExample]:
    """Read train.tsv or dev.tsv of a task as GLUE distributes it."""
    split = "train" if path.name == "train.tsv" else "valid"
    examples = list(TableReader(path, glue_layout.TASKS[name].tables[split][0], glue_layout.TASKS[name]).examples())
    if not examples:
        raise ValueError(f"{path} is empty")
    return examples


def write_tables(folder: Path, name: str, output: Path, most_examples: Optional[int]) -> dict[str, int]:
    """Write ``train.tsv`` and ``valid.tsv``, and ``valid.txt`` with one document an example.

    Args:
        folder: GLUE's, with one folder for each task.
        name: of the task.
        output: folder for the three files.
        most_examples: of training, spread evenly over GLUE's file, which is ordered by source in some tasks; None takes
            all.

    Returns:
        examples by split.
    """
    output.mkdir(parents=True, exist_ok=True)
    counts = {}
    for split, source in (("train", "train.tsv"), ("valid", "dev.tsv")):
        examples = read_examples(folder / name / source, name)
        if split == "train" and most_examples is not None and most_examples < len(examples):
            examples = [examples[number * len(examples) // most_examples] for number in range(most_examples)]
        lines = ["\t".join([*example.sentences, str(example.label)]) for example in examples]
        (output / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        counts[split] = len(examples)
        documents = ["\n".join(example.sentences) for example in examples]
    (output / "valid.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return counts


def check_folder(folder: Path) -> None:
    """Refuse a folder that lacks a file, before hours are spent."""
    missing = [
        f"{name}/{file}" for name in TASKS for file in ("train.tsv", "dev.tsv") if not (folder / name / file).exists()
    ]
    if missing:
        raise FileNotFoundError(f"{folder} lacks {', '.join(missing)}: --tasks must be a folder in GLUE's layout")
