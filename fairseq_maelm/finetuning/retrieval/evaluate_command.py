"""The sub-command ``maelm evaluate retrieval``."""

import argparse
import sys
from pathlib import Path
from typing import Any

from fairseq_maelm.files import refuse_existing, write_json
from fairseq_maelm.finetuning.retrieval.beir import read_judgments
from fairseq_maelm.finetuning.retrieval.measures import VALIDATION_MEASURES, load_library, measure, parse
from fairseq_maelm.finetuning.retrieval.runs import load_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``maelm evaluate retrieval``."""
    parser.description = (
        "Measures run files against relevance judgments and writes a table of percentages. Means are over the judged "
        "queries; one without a result counts as zero."
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="TREC run files, of `maelm search` or others")
    parser.add_argument("--qrels", required=True, type=Path, help="judgments: BEIR's three columns, or TREC's four")
    parser.add_argument(
        "--measures",
        nargs="+",
        default=list(VALIDATION_MEASURES.values()),
        metavar="MEASURE",
        help=f"as ir-measures spells them ({' '.join(VALIDATION_MEASURES.values())})",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the metrics to a new file, too")


def run(args: argparse.Namespace) -> None:
    """Writes the table to standard output."""
    load_library()
    for name in args.measures:
        parse(name)
    if args.json is not None:
        refuse_existing(args.json)
    judgments: dict[str, dict[str, int]] = {}
    for judgment in read_judgments(args.qrels):
        judgments.setdefault(judgment.query, {})[judgment.document] = judgment.score
    rows = []
    for path in args.runs:
        found = load_run(path)
        if not judgments.keys() & found.keys():
            raise ValueError(f"{path} answers none of the {len(judgments)} queries of {args.qrels}: is it another set?")
        missing = len(judgments.keys() - found.keys())
        rows.append({"run": str(path), **measure(judgments, found, args.measures), "queries_without_result": missing})
    sys.stdout.write(table(rows, args.measures, len(judgments)))
    if args.json is not None:
        write_json(args.json, rows)


def table(rows: list[dict[str, Any]], measures: list[str], queries: int) -> str:
    """A Markdown table of runs, a line each, percentages with two decimals."""
    columns = ["run", *measures, "queries", "without result"]
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        metrics = [f"{row[name]:.2f}" for name in measures]
        lines.append("| " + " | ".join([row["run"], *metrics, str(queries), str(row["queries_without_result"])]) + " |")
    return "\n".join(lines) + "\n"
