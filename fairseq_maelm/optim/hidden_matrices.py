"""Which of a model's parameters are hidden matrices, those that ``--optimizer muon`` orthogonalizes.

fairseq hands an optimizer tensors without names, and under --fp16 copies of them in single precision, to which it
passes on the two attributes that are set here.
"""

from torch import Tensor, nn

from fairseq_maelm.modules.attention.relative_position import RelativePositionBias

HIDDEN, UNDECAYED = "hidden", "undecayed"


def mark_parameters(model: nn.Module) -> None:
    """Mark the weights of all linear layers of a model as hidden matrices, and its relative biases as undecayed.

    Called before the model gets heads for fine-tuning: their matrices are AdamW's, as embeddings are. Those of the
    head that predicts masked tokens lie between hidden states and are hidden matrices.
    """
    for name, module in model.named_modules():
        parent, _, own_name = name.rpartition(".")
        if isinstance(module, RelativePositionBias):
            module.weight.param_group = UNDECAYED  # type: ignore[attr-defined]
        elif isinstance(module, nn.Linear):
            matrices = 1
            if own_name in ("qkv_proj", "kv_proj"):
                matrices = module.out_features // module.in_features
            elif own_name == "fc1":  # a gated feed-forward network has as many rows again for the gate
                matrices = module.out_features // model.get_submodule(f"{parent}.fc2").in_features  # type: ignore
            module.weight.param_group = HIDDEN  # type: ignore[attr-defined]
            module.weight.optim_overrides = {"matrices": matrices}  # type: ignore[attr-defined]


def matrices_in(param: Tensor) -> int:
    """Return how many hidden matrices, of equal shape, lie below one another in a parameter marked as such."""
    return int(param.optim_overrides["matrices"])  # type: ignore[attr-defined]
