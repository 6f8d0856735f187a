"""The sub-command ``maelm evaluate retrieval``."""

import argparse
import json
import sys

from tabulate import tabulate

from fairseq_maelm.arguments import UsageError, add_json, existing_path
from fairseq_maelm.finetuning.retrieval.measures import VALIDATION_MEASURES, find_measures, load_library, measure
from fairseq_maelm.finetuning.retrieval.reading import load_run, read_judgments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm evaluate retrieval``."""
    parser.description = (
        "Measures run files against relevance judgments and writes a table of percentages. They are means over the "
        "judged queries; a query without a result counts as zero."
    )
    parser.add_argument(
        "runs", nargs="+", type=existing_path, metavar="RUN", help="run file in TREC's format, as of `maelm search`"
    )
    parser.add_argument(
        "--qrels", required=True, type=existing_path, metavar="FILE",
        help="judgments: a file with BEIR's three columns or TREC's four",
    )  # fmt: skip
    parser.add_argument(
        "--measures", nargs="+", metavar="MEASURE", default=list(VALIDATION_MEASURES.values()),
        help=f"measures as ir-measures spells them (default: {' '.join(VALIDATION_MEASURES.values())})",
    )  # fmt: skip
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Write the table, or a list of JSON objects, to standard output."""
    load_library()
    try:
        find_measures(args.measures)
    except ValueError as error:
        raise UsageError(f"--measures: {error}") from error
    judgments: dict[str, dict[str, int]] = {}
    for judgment in read_judgments(args.qrels):
        judgments.setdefault(judgment.query, {})[judgment.document] = judgment.score
    rows = []
    for path in args.runs:
        found = load_run(path)
        if not judgments.keys() & found.keys():
            raise ValueError(
                f"{path} has no result for any of the {len(judgments)} queries of {args.qrels}: give a run of the same "
                "data set"
            )
        counts = {"queries": len(judgments), "unanswered": len(judgments.keys() - found.keys())}
        rows.append({"run": str(path), **measure(judgments, found, args.measures), **counts})
    table = tabulate(rows, headers="keys", tablefmt="github", floatfmt=".2f")
    sys.stdout.write(f"{json.dumps(rows) if args.json else table}\n")
