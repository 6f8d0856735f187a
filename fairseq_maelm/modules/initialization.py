"""Prepare the parameters of a new model: random values, and marks of the hidden matrices for ``--optimizer muon``."""

from torch import Tensor, nn

from fairseq_maelm.modules.attention.relative_position import RelativePositionBias
from fairseq_maelm.modules.transformer import TransformerLayer

# Standard deviation of relative biases, which are added to logits and do not depend on the width.
_RELATIVE_STD = 0.02


def initialize(module: nn.Module, std: float, embedding_std: float) -> None:
    """Draw linear weights from N(0, std^2) and the embeddings of tokens and positions from N(0, embedding_std^2).

    Set biases and the embedding of padding to zero.
    """
    if isinstance(module, nn.Linear):
        module.weight.data.normal_(mean=0.0, std=std)
        if module.bias is not None:
            module.bias.data.zero_()
    if isinstance(module, nn.Embedding):
        relative = isinstance(module, RelativePositionBias)
        module.weight.data.normal_(mean=0.0, std=_RELATIVE_STD if relative else embedding_std)
        if module.padding_idx is not None:
            module.weight.data[module.padding_idx].zero_()


def scale_outputs(layers: nn.ModuleList) -> None:
    """Scale the output weights of modern layers by 1 / sqrt(2 L), so that residual sums do not grow with depth.

    The scaling is from Radford et al. (2019); ModernBERT uses it too. Layers with LayerNorm after each residual sum do
    not need it.
    """
    for layer in layers:
        if isinstance(layer, TransformerLayer) and layer.modern:
            parts = [attention.out_proj for attention in (layer.self_attn, layer.cross_attn) if attention is not None]
            for linear in (*parts, layer.fc2):
                linear.weight.data.mul_((2 * len(layers)) ** -0.5)


# Groups of parameters that Muon treats differently. fairseq gives the optimizer tensors without names; with --fp16, it
# gives single-precision copies. The two attributes that are set here are kept in those copies.
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
