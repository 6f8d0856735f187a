"""The sub-command ``maelm evaluate-retrieval``."""

import argparse
import sys
from pathlib import Path
from typing import Any

from fairseq_maelm.files import write_json
from fairseq_maelm.finetuning.retrieval.beir import read_judgements
from fairseq_maelm.finetuning.retrieval.measures import VALIDATION_MEASURES, load_library, measure, parse
from fairseq_maelm.finetuning.retrieval.runs import load_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm evaluate-retrieval``."""
    parser.description = (
        "Measures run files against relevance judgements and writes a table of percentages. Means are over the judged "
        "queries; one without a result counts as zero."
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="TREC run files, of `maelm search` or others")
    parser.add_argument("--qrels", required=True, type=Path, help="judgements: BEIR's three columns, or TREC's four")
    parser.add_argument(
        "--measures",
        nargs="+",
        default=list(VALIDATION_MEASURES.values()),
        metavar="MEASURE",
        help=f"as ir-measures spells them ({' '.join(VALIDATION_MEASURES.values())})",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a new file, too")


def run(args: argparse.Namespace) -> None:
    """Writes the table to standard output.

    Raises:
        ValueError: a file is not as it must be, a measure is unknown, or ir-measures is missing.
        OSError: a file is missing.
    """
    load_library()
    for name in args.measures:
        parse(name)
    if args.json is not None and args.json.exists():
        raise ValueError(f"{args.json} exists already: name another file, or remove it first")
    judgements: dict[str, dict[str, int]] = {}
    for judgement in read_judgements(args.qrels):
        judgements.setdefault(judgement.query, {})[judgement.document] = judgement.score
    rows = []
    for path in args.runs:
        found = load_run(path)
        if not judgements.keys() & found.keys():
            raise ValueError(
                f"{path} answers none of the {len(judgements)} queries of {args.qrels}: is it another set?"
            )
        missing = len(judgements.keys() - found.keys())
        rows.append({"run": str(path), **measure(judgements, found, args.measures), "queries_without_result": missing})
    sys.stdout.write(table(rows, args.measures, len(judgements)))
    if args.json is not None:
        write_json(args.json, rows)


def table(rows: list[dict[str, Any]], measures: list[str], queries: int) -> str:
    """A Markdown table of runs, a line each, percentages with two decimals."""
    columns = ["run", *measures, "queries", "without result"]
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        figures = [f"{row[name]:.2f}" for name in measures]
        lines.append("| " + " | ".join([row["run"], *figures, str(queries), str(row["queries_without_result"])]) + " |")
    return "\n".join(lines) + "\n"
