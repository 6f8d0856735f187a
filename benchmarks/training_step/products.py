"""The bare matrix products of a training step, run alone: the time that no implementation can go below.

A product C = A B of the forward pass brings dA = dC B^T and dB = A^T dC in the backward pass; the three are timed
together, for each distinct shape, and added up by how often they occur.
"""

import torch

from training_step.clocks import Clock

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# batch, rows, inner, columns: A is [batch, rows, inner] and B is [batch, inner, columns].
Shape = tuple[int, int, int, int]


class BareProducts:
    """Times products of given shapes with random data, each ``iterations`` times for one timing."""

    def __init__(self, device: str, precision: str, iterations: int) -> None:
        self._device = device
        self._dtype = DTYPES[precision]
        self._iterations = iterations

    def seconds(self, shape: Shape) -> dict[str, float]:
        """Seconds of the three products of one shape together."""
        batch, rows, inner, columns = shape
        left = self._random(batch, rows, inner)
        # Weights are stored as [out, in].
        right = self._random(batch, columns, inner).transpose(1, 2)
        gradient = self._random(batch, rows, columns)
        if batch == 1:
            left, right, gradient = left[0], right[0], gradient[0]
        self._three(left, right, gradient)
        clock = Clock(self._device)
        for _ in range(self._iterations):
            self._three(left, right, gradient)
        return {name: value / self._iterations for name, value in clock.read().items()}

    @staticmethod
    def _three(left: torch.Tensor, right: torch.Tensor, gradient: torch.Tensor) -> None:
        torch.matmul(left, right)
        torch.matmul(gradient, right.transpose(-1, -2))
        # The gradient of a weight is computed in its layout [out, in].
        torch.matmul(gradient.transpose(-1, -2), left)

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=self._device, dtype=self._dtype)
