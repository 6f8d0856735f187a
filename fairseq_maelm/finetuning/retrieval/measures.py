"""Measures of retrieval by ir-measures, which calls trec_eval's code like BEIR, and ``maelm evaluate retrieval``."""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from tabulate import tabulate

from fairseq_maelm.arguments import UsageError, add_json, existing_path
from fairseq_maelm.finetuning.retrieval.reading import load_run, read_judgments

# Names of metrics in training -> measures.
VALIDATION_MEASURES = {"ndcg10": "nDCG@10", "recall100": "R@100", "mrr10": "RR@10"}
# Number of documents per query that these measures need.
DEPTH = 100


def load_library() -> Any:
    """Import ir-measures."""
    try:
        import ir_measures
    except ImportError as error:
        raise ValueError(
            "measuring retrieval needs the library ir-measures: pip install 'fairseq_maelm[retrieval]'"
        ) from error
    return ir_measures


def find_measures(names: Iterable[str]) -> dict[str, Any]:
    """Look up measures by names as ir-measures spells them, "nDCG@10" for example."""
    library, found = load_library(), {}
    for name in names:
        try:
            found[name] = library.parse_measure(name)
        except (ValueError, NameError, SyntaxError, KeyError) as error:
            raise ValueError(f"there is no measure {name!r}: examples are nDCG@10, R@100, RR@10 and AP@1000") from error
    return found


def measure(
    judgments: Mapping[str, Mapping[str, int]], run: Mapping[str, Mapping[str, float]], names: Iterable[str]
) -> dict[str, float]:
    """Average measures over the judged queries; a query without a result counts as zero.

    Args:
        judgments: query -> document -> graded relevance.
        run: query -> document -> score; queries without judgments are ignored.
        names: names of measures, as in ``find_measures``.

    Returns:
        name -> percent.
    """
    measures = find_measures(names)
    if not judgments:
        raise ValueError("there are no judgments to measure against")
    judged = {query: dict(documents) for query, documents in judgments.items()}
    found = {query: dict(run[query]) for query in judged if run.get(query)}
    values = load_library().calc_aggregate(list(measures.values()), judged, found) if found else {}
    return {name: 100.0 * float(values.get(each, 0.0)) for name, each in measures.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``maelm evaluate retrieval``."""
    parser.description = (
        "Measures run files against relevance judgments and writes a table of percentages. They are means over the "
        "judged queries; a query without a result counts as zero."
    )
    parser.add_argument(
        "runs",
        nargs="+",
        type=existing_path,
        metavar="RUN",
        help="run file in TREC's format, as written by `maelm search`",
    )
    parser.add_argument(
        "--qrels", required=True, type=existing_path, metavar="FILE",
        help="judgments: a file with BEIR's three columns or TREC's four",
    )  # fmt: skip
    parser.add_argument(
        "--measures", nargs="+", metavar="MEASURE", default=list(VALIDATION_MEASURES.values()),
        help=f"measures, spelled as in ir-measures (default: {' '.join(VALIDATION_MEASURES.values())})",
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
