"""Random weights at the start of training."""

from torch import nn


def initialize(module: nn.Module, std: float) -> None:
    """Draw linear weights from N(0, std^2), tables from N(0, 0.02^2); biases and the padding's embedding are zero."""
    if isinstance(module, nn.Linear):
        module.weight.data.normal_(mean=0.0, std=std)
        if module.bias is not None:
            module.bias.data.zero_()
    if isinstance(module, nn.Embedding):
        module.weight.data.normal_(mean=0.0, std=0.02)
        if module.padding_idx is not None:
            module.weight.data[module.padding_idx].zero_()
