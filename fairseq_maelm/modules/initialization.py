"""Random weights at the start of training."""

from torch import nn

from fairseq_maelm.modules.attention.relative_position import RelativePositionBias

# Of the table of relative biases, which are added to logits and have nothing to do with the width.
_RELATIVE_STD = 0.02


def initialize(module: nn.Module, std: float, embedding_std: float) -> None:
    """Draw linear weights from N(0, std^2) and the embeddings of tokens and positions from N(0, embedding_std^2).

    Biases and the padding's embedding are zero.
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
