"""Mark the hidden matrices of a model, whose updates ``--optimizer muon`` orthogonalizes.

fairseq passes tensors without names to an optimizer, and with --fp16 single-precision copies of them. It copies the two
attributes that are set here.
"""

from torch import Tensor, nn

from fairseq_maelm.modules.attention.relative_position import RelativePositionBias

HIDDEN, UNDECAYED = "hidden", "undecayed"


def mark_parameters(model: nn.Module) -> None:
    """Mark the weights of all linear layers of a model as hidden matrices, and its relative biases as undecayed.

    Call it before the model gets heads for fine-tuning: AdamW updates their matrices, like embeddings. The dense layer
    of the LM head maps hidden states to hidden states and is a hidden matrix.
    """
    for name, module in model.named_modules():
        parent, _, own_name = name.rpartition(".")
        if isinstance(module, RelativePositionBias):
            module.weight.param_group = UNDECAYED  # type: ignore[attr-defined]
        elif isinstance(module, nn.Linear):
            matrices = 1
            if own_name in ("qkv_proj", "kv_proj"):
                matrices = module.out_features // module.in_features
            elif own_name == "fc1":  # in a gated feed-forward network it includes the matrix of the gate
                matrices = module.out_features // model.get_submodule(f"{parent}.fc2").in_features  # type: ignore
            module.weight.param_group = HIDDEN  # type: ignore[attr-defined]
            module.weight.optim_overrides = {"matrices": matrices}  # type: ignore[attr-defined]


def matrices_in(param: Tensor) -> int:
    """Return the number of hidden matrices of equal shape that are stacked in a marked parameter."""
    return int(param.optim_overrides["matrices"])  # type: ignore[attr-defined]
