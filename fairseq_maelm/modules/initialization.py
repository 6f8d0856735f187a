"""Initialize weights randomly at the start of training."""

from torch import nn

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
