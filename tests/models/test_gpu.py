"""The same numbers on a GPU; skipped where there is none."""

import pytest
import torch
import torch.nn.functional as F
from fairseq import utils
from support import batch_of, model_of, random_sequences

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def loss_and_gradients(model, net_input, targets):
    logits, _ = model(**net_input)
    loss = F.cross_entropy(logits, targets, reduction="sum")
    loss.backward()
    return loss.detach().cpu(), {name: parameter.grad.cpu() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("buckets", ["t5", "none"])
def test_equals_cpu(buckets):
    sequences = random_sequences([30, 17, 9])
    net_input, targets = batch_of(sequences, [[0, 4], [16], [3, 5, 7]])
    on_cpu = loss_and_gradients(model_of(relative_buckets=buckets), net_input, targets)
    moved = utils.move_to_cuda({"net_input": net_input, "target": targets})
    on_gpu = loss_and_gradients(model_of(relative_buckets=buckets).cuda(), moved["net_input"], moved["target"])
    torch.testing.assert_close(on_gpu[0], on_cpu[0], rtol=1e-4, atol=1e-4)
    for name, gradient in on_cpu[1].items():
        difference = (on_gpu[1][name] - gradient).norm() / gradient.norm().clamp_min(1e-6)
        assert difference < 1e-3, f"{name}: {difference:.1e}"


def test_half_precision_forward_is_finite():
    net_input, targets = batch_of(random_sequences([30, 17]), [[0, 4], [16]])
    moved = utils.move_to_cuda({"net_input": net_input, "target": targets})
    model = model_of().cuda().half()
    logits, _ = model(**moved["net_input"])
    assert logits.dtype == torch.float16
    assert torch.isfinite(logits).all()
