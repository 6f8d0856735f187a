"""Measures of retrieval, computed by ir-measures, which calls trec_eval's code as BEIR's evaluation does."""

from collections.abc import Iterable, Mapping
from typing import Any

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
