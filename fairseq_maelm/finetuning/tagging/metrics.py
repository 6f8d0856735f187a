"""Metrics of labeled sentences: accuracy of words, and precision, recall and F1 of entities by seqeval."""

from collections.abc import Sequence

ACCURACY = ("accuracy",)
ENTITY_METRICS = ("accuracy", "precision", "recall", "f1")


def require_seqeval() -> None:
    """Refuse to go on without seqeval.

    Raises:
        ValueError: says how to install it.
    """
    try:
        import seqeval  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        raise ValueError(
            "entities are scored by seqeval, which is not installed: pip install seqeval, or install this package as "
            "fairseq_maelm[tagging]"
        ) from error


def score(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], has_entities: bool) -> dict[str, float]:
    """Score the labels of all sentences of a set.

    Args:
        gold: the right labels of every sentence.
        predicted: a model's, as many.
        has_entities: whether labels are parts of entities, in IOB1, IOB2 or IOBES.

    Returns:
        percentages in [0, 100]: ``accuracy`` of words, and of entities also ``precision``, ``recall`` and ``f1`` over
        all types together (micro average), an entity being right if its type and both ends are. As in CoNLL's
        evaluation, labels that break the rules of their scheme are read as entities where they can be. What would
        divide by zero is 0.
    """
    pairs = [pair for own, other in zip(gold, predicted, strict=True) for pair in zip(own, other, strict=True)]
    metrics = {"accuracy": 100.0 * sum(own == other for own, other in pairs) / max(1, len(pairs))}
    if has_entities:
        from seqeval.metrics import f1_score, precision_score, recall_score  # type: ignore[import-untyped]

        both = [list(map(list, gold)), list(map(list, predicted))]
        for name, metric in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
            metrics[name] = 100.0 * float(metric(*both, zero_division=0))
    return metrics
