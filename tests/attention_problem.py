"""Random attention to compute by several backends."""

import torch

from fairseq_maelm.modules.attention.backends import BACKENDS
from fairseq_maelm.modules.attention.context import AttentionContext, Tokens, Visibility
from fairseq_maelm.modules.attention.streams import split_packed


def context_of(relative_bias=None, positions=None, lengths=None, max_positions=None, **visibility):
    tokens = Tokens(positions, max_positions=max_positions)
    return AttentionContext(tokens, Visibility(lengths, **visibility), relative_bias)


def attend(query, key, value, context, dropout, backend="auto"):
    return BACKENDS[backend].attend(query, key, value, context, dropout)


def attend_qkv(qkv, context, dropout, backend="auto"):
    return BACKENDS[backend].attend_qkv(qkv, context, dropout)


class Problem:
    """Random attention over several layers that share a bias, as an encoder has it."""

    def __init__(self, batch, heads, length, width, span, shared, padded, seed=0, dtype=torch.float64, layers=2):
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

        self.qkv = [draw(batch, length, 3, heads, width).requires_grad_() for _ in range(layers)]
        self.table = draw(heads, 2 * span - 1).requires_grad_()
        self.weights = draw(batch, heads, length, width)
        rows = 1 if shared else batch
        self.positions = torch.stack([torch.randperm(span, generator=generator)[:length] for _ in range(rows)])
        self.lengths = torch.randint(0, length + 1, (batch,), generator=generator) if padded else None

    @property
    def leaves(self):
        return [*self.qkv, self.table]

    def outputs(self, backend, dropout=0.0, attention=attend):
        context = context_of(self.table, self.positions, self.lengths)
        return [attention(*split_packed(qkv), context, dropout, backend) for qkv in self.qkv]

    def results(self, backend, dropout=0.0, attention=attend):
        """Outputs and the gradients of all leaves."""
        outputs = self.outputs(backend, dropout, attention)
        loss = sum(((layer + 1) * output * self.weights).sum() for layer, output in enumerate(outputs))
        return [output.detach() for output in outputs] + list(torch.autograd.grad(loss, self.leaves))
