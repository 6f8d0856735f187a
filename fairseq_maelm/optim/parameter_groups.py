"""Mark the hidden matrices of a model, whose updates ``--optimizer muon`` orthogonalizes.

fairseq gives tensors without names to the optimizer; with --fp16, it gives single-precision copies instead. The two
attributes that are set here are kept in those copies.
"""

from torch import Tensor, nn

from fairseq_maelm.modules.attention.relative_position import RelativePositionBias

HIDDEN, UNDECAYED = "hidden", "undecayed"


def mark_parameters(model: nn.Module) -> None:
    """Mark the weights of a model's linear layers as hidden matrices, and relative biases as free of weight decay.

    Call this before adding heads for fine-tuning: AdamW must update the heads' matrices, like embeddings. The dense
    layer of the LM head maps hidden states to hidden states, so it counts as a hidden matrix.
    """
    for name, module in model.named_modules():
        parent, _, own_name = name.rpartition(".")
        if isinstance(module, RelativePositionBias):
            module.weight.param_group = UNDECAYED  # type: ignore[attr-defined]
        elif isinstance(module, nn.Linear):
            matrices = 1
            if own_name in ("qkv_proj", "kv_proj"):
                matrices = module.out_features // module.in_features
            elif own_name == "fc1":  # in a gated feed-forward network, fc1 includes the gate's matrix
                matrices = module.out_features // model.get_submodule(f"{parent}.fc2").in_features  # type: ignore
            module.weight.param_group = HIDDEN  # type: ignore[attr-defined]
            module.weight.optim_overrides = {"matrices": matrices}  # type: ignore[attr-defined]


def matrices_in(param: Tensor) -> int:
    """Return the number of equally shaped hidden matrices that are stacked in a marked parameter."""
    return int(param.optim_overrides["matrices"])  # type: ignore[attr-defined]
