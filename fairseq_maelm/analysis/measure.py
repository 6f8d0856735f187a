"""From a model and a text to numbers: everything that the report shows, as plain data."""

from collections.abc import Iterable
from typing import Any, Optional

import torch

from fairseq_maelm.analysis.collect import CollectSettings, LayerGrams, model_inputs
from fairseq_maelm.analysis.encoders import Encoder
from fairseq_maelm.analysis.sequences import Blocks
from fairseq_maelm.analysis.spectrum import effective_rank, singular_values
from fairseq_maelm.analysis.subspace import compare_subspaces
from fairseq_maelm.analysis.theorem import (
    AttentionWeights,
    LayerCheck,
    check_stack,
    logarithm_of_recursive_bound,
    random_weights,
    relative_residual,
)

# The attention-only stack is followed for so many tokens of one batch; the pseudo-inverse takes their cube.
_STACK_TOKENS = 1024


def rank_rows(grams: dict[str, LayerGrams], tau: float, centered: bool) -> list[dict[str, Any]]:
    """Effective rank and whole spectrum for each condition, set of tokens and layer.

    Returns:
        dictionaries with ``condition``, ``token_set``, ``layer``, ``rows`` (the number of representations),
        ``effective_rank`` and ``singular_values`` [D], falling.
    """
    rows = []
    for condition, each in grams.items():
        for place, layer in enumerate(each.layers):
            for tokens, accumulator in each.sets(place).items():
                values = singular_values(accumulator.gram(centered))
                rows.append(
                    {
                        "condition": condition,
                        "token_set": tokens,
                        "layer": layer,
                        "rows": accumulator.rows,
                        "effective_rank": effective_rank(values, tau),
                        "singular_values": [float(f"{value:.8g}") for value in values.tolist()],
                    }
                )
    return rows


def subspace_rows(grams: dict[str, LayerGrams], tau: float, centered: bool) -> list[dict[str, Any]]:
    """[MASK] against the real tokens of the same input ("masked") and of the whole input ("whole"), layer by layer."""
    masked = grams.get("masked")
    if masked is None or not masked.mask[0].rows:
        return []
    references = {"masked": masked.real, **({"whole": grams["whole"].real} if "whole" in grams else {})}
    return [
        {"reference": name, "layer": layer}
        | compare_subspaces(
            accumulators[place].gram(centered),
            masked.mask[place].gram(centered),
            masked.sets(place)["all"].gram(centered),
            tau,
        )._asdict()
        for name, accumulators in references.items()
        for place, layer in enumerate(masked.layers)
    ]


@torch.inference_mode()
def theorem_rows(
    encoder: Encoder, blocks: Blocks, settings: CollectSettings, device: str
) -> dict[str, list[dict[str, Any]]]:
    """Follow one batch's embeddings through attention alone.

    Returns:
        for "trained" weights, if they are known, and for "random" ones of the same shape: a dictionary a layer; and for
        the whole "encoder", residual connections, feed-forward networks and all: ``layer`` (0 for the embeddings) and
        ``relative`` residual of the same tokens. Empty without any [MASK].
    """
    masked = (inputs["masked"] for _, inputs in model_inputs(encoder, blocks, settings, device) if "masked" in inputs)
    batch = next((each for each in masked if each.mask is not None), None)
    if batch is None or batch.mask is None:
        return {}
    all_states = [states.flatten(0, 1).double().cpu() for states in encoder.hidden_states(batch.tokens)]
    rows = torch.arange(len(all_states[0])) if batch.real is None else batch.real.cpu()
    rows = rows[:_STACK_TOKENS]
    real, mask = all_states[0][rows], all_states[0][batch.mask.cpu()[: _STACK_TOKENS // 4]]
    generator = torch.Generator().manual_seed(settings.seed)
    shape = (encoder.width, encoder.num_heads, generator)
    stacks: dict[str, Optional[Iterable[AttentionWeights]]] = {
        "trained": encoder.attention_weights(),
        "random": (random_weights(*shape) for _ in range(encoder.num_layers)),
    }
    result = {name: _check_rows(check_stack(real, mask, layers)) for name, layers in stacks.items() if layers}
    result["encoder"] = [
        {"layer": layer, "relative": relative_residual(states[rows])} for layer, states in enumerate(all_states)
    ]
    return result


def _check_rows(checks: list[LayerCheck]) -> list[dict[str, Any]]:
    logarithms = logarithm_of_recursive_bound(checks)
    return [
        {"layer": layer, **check._asdict(), "proved": check.proved, "holds": check.holds}
        | {"log10_bound_from_embeddings": logarithm}
        for layer, (check, logarithm) in enumerate(zip(checks, logarithms[1:]), 1)
    ]
