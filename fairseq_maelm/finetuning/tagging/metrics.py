"""Metrics of labeled sentences: accuracy of words, and precision, recall and F1 of entities."""

from collections.abc import Sequence

from fairseq_maelm.finetuning.tagging.schemes import Entity, entities

ACCURACY = ("accuracy",)
ENTITY_METRICS = ("accuracy", "precision", "recall", "f1")


def score(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], has_entities: bool) -> dict[str, float]:
    """Score the labels of all sentences of a set.

    Returns:
        percentages in [0, 100]: ``accuracy`` of words, and of entities also ``precision``, ``recall`` and ``f1`` over
        all types together (micro average), an entity being right if its type and both ends are. As in CoNLL's
        evaluation, labels that break the rules of their scheme are read as entities where they can be. What would
        divide by zero is 0.
    """
    pairs = [pair for own, other in zip(gold, predicted, strict=True) for pair in zip(own, other, strict=True)]
    metrics = {"accuracy": 100.0 * sum(own == other for own, other in pairs) / max(1, len(pairs))}
    if has_entities:
        expected, found = _entities(gold), _entities(predicted)
        right = 100.0 * len(expected & found)
        metrics["precision"] = right / max(1, len(found))
        metrics["recall"] = right / max(1, len(expected))
        metrics["f1"] = 2 * right / max(1, len(expected) + len(found))
    return metrics


def _entities(sentences: Sequence[Sequence[str]]) -> set[tuple[int, Entity]]:
    return {(number, entity) for number, labels in enumerate(sentences) for entity in entities(labels)}
