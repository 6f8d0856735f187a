"""The same numbers on a GPU; skipped where there is none."""

import pytest
import torch
import torch.nn.functional as F
from fairseq import utils
from support import batch_of, model_of, random_sequences

from fairseq_maelm.criterions.maelm import MaelmCriterion
from fairseq_maelm.modules.linear_cross_entropy import linear_cross_entropy

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def test_half_precision_forward_is_finite():
    net_input, targets = batch_of(random_sequences([30, 17]), [[0, 4], [16]])
    moved = utils.move_to_cuda({"net_input": net_input, "target": targets})
    model = model_of().cuda().half()
    logits, _ = model(**moved["net_input"])
    assert logits.dtype == torch.float16
    assert torch.isfinite(logits).all()


def sample_of(lengths, masked):
    net_input, target = batch_of(random_sequences(lengths), masked)
    return {"net_input": net_input, "target": target, "ntokens": sum(lengths), "nsentences": len(lengths)}


@pytest.mark.parametrize("buckets", ["t5", "none"])
def test_the_loss_at_masked_positions_equals_cpu(buckets):
    """The vocabulary of 40 symbols is padded to 64 on a GPU."""
    sample = sample_of([30, 17, 9], [[0, 4], [16], [3, 5, 7]])
    results = []
    for device, batch in (("cpu", sample), ("cuda", utils.move_to_cuda(sample))):
        model = model_of(relative_buckets=buckets).to(device)
        loss, _, logged = MaelmCriterion(None)(model, batch)
        loss.backward()
        gradients = {name: parameter.grad.cpu() for name, parameter in model.named_parameters()}
        results.append((loss.detach().cpu(), int(logged["ncorrect"]), gradients))
    on_cpu, on_gpu = results
    torch.testing.assert_close(on_gpu[0], on_cpu[0], rtol=1e-4, atol=1e-4)
    assert on_gpu[1] == on_cpu[1]
    for name, gradient in on_cpu[2].items():
        difference = (on_gpu[2][name] - gradient).norm() / gradient.norm().clamp_min(1e-6)
        assert difference < 1e-3, f"{name}: {difference:.1e}"


@pytest.mark.parametrize(("dtype", "scale"), [(torch.bfloat16, 1.0), (torch.float16, 128.0)])
def test_the_loss_in_half_precision_is_as_exact_as_the_plain_way(dtype, scale):
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(*shape, generator=generator).to("cuda", dtype) for shape in ((300, 64), (5001, 64), (5001,))]
    target = torch.randint(5001, (300,), generator=generator).cuda()
    gradients = []
    for cast, function in (
        (torch.float64, None),
        (dtype, None),
        (dtype, linear_cross_entropy),
    ):
        leaves = [tensor.detach().to(cast).requires_grad_() for tensor in drawn]
        if function is None:
            logits = F.linear(*leaves)
            loss = F.cross_entropy(logits if cast == torch.float64 else logits.float(), target, reduction="sum")
        else:
            loss = function(*leaves, target).loss
        (loss * scale).backward()
        gradients.append([leaf.grad.double() / scale for leaf in leaves])
    for exact, plain, ours in zip(*gradients):
        assert (ours - exact).norm() <= 1.25 * (plain - exact).norm()


@pytest.mark.parametrize("lengths", [[30, 17], [20, 20]], ids=["padded", "dense"])
def test_a_step_never_waits_for_the_gpu(lengths):
    sample = utils.move_to_cuda(sample_of(lengths, [[0, 4], [16, 9]]))
    model = model_of(dropout=0.1, attention_dropout=0.1).cuda().train()
    criterion = MaelmCriterion(None)
    # The first step loads kernels and libraries, which may wait.
    criterion(model, sample)[0].backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        criterion(model, sample)[0].backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
