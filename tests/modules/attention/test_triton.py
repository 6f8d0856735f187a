"""Attention in Triton kernels equals the written-out one in outputs and all gradients, dropout included.

Without a GPU the kernels run in Triton's interpreter, with small blocks, so that small shapes have several of them.
"""

import itertools
from functools import partial

import numpy
import pytest
import torch
from attention_problem import context_of

from fairseq_maelm.modules.attention.backends import BACKENDS
from fairseq_maelm.modules.attention.triton import operator as attention_triton
from fairseq_maelm.modules.attention.triton.operator import relative_attention, relative_attention_qkv

triton = pytest.importorskip("triton", reason="needs triton, which comes with torch's CUDA builds")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OLD = tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 7)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        DEVICE == "cpu" and OLD and tuple(int(part) for part in numpy.__version__.split(".")[:2]) >= (2, 4),
        reason="the interpreter of Triton before 3.7 does not work with numpy 2.4",
    ),
]


@pytest.fixture(autouse=True)
def real_blocks(monkeypatch):
    """Give the blocks that small ones have taken the place of."""
    from fairseq_maelm.modules.attention.triton import launch

    real = launch.BLOCKS
    if DEVICE == "cpu":
        monkeypatch.setattr(launch, "BLOCKS", dict.fromkeys(real, launch.Block(32, 16, 4, 2)))
    return real


@pytest.fixture
def exact_bfloat16(monkeypatch):
    """Triton's interpreter multiplies bfloat16's bits as integers, and cuts them off where the GPU rounds."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    dot, truncate = InterpreterBuilder.create_dot, InterpreterBuilder.create_fp_trunc

    def widen(handle):
        if handle.dtype.scalar != triton.language.bfloat16:
            return handle
        wide = torch.from_numpy(handle.data.view(numpy.int16)).view(torch.bfloat16).float()
        return TensorHandle(wide.numpy(), triton.language.float32)

    def create_dot(self, left, right, *others):
        return dot(self, widen(left), widen(right), *others)

    def create_fp_trunc(self, source, kind):
        if kind.scalar != triton.language.bfloat16:
            return truncate(self, source, kind)
        rounded = torch.from_numpy(source.data.astype(numpy.float32)).bfloat16().view(torch.int16)
        return TensorHandle(rounded.numpy().view(numpy.uint16), kind.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
    monkeypatch.setattr(InterpreterBuilder, "create_fp_trunc", create_fp_trunc)


class Case:
    """Random inputs in float64; ``attend`` and ``plain`` return output and gradients in the type of their inputs."""

    def __init__(self, lengths, heads=2, head_dim=32, max_positions=48, shared=False, shuffled=False, window=None):
        generator = torch.Generator().manual_seed(len(lengths) * 1000 + head_dim)
        batch, self.max_positions, self.window = len(lengths), max_positions, window
        columns = max(lengths)
        kept = [torch.randperm(max_positions, generator=generator)[:columns] for _ in range(1 if shared else batch)]
        self.positions = torch.stack(kept if shuffled else [row.sort().values for row in kept])
        self.lengths = None if min(lengths) == columns else torch.tensor(lengths)
        self.valid = torch.arange(columns) < torch.tensor(lengths)[:, None]
        self.positions = self.positions if shared else self.positions * self.valid

        def random(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.qkv = random(batch, columns, 3, heads, head_dim)
        self.of_distance = random(heads, 2 * max_positions - 1)
        self.gradient = random(batch, columns, heads, head_dim) * self.valid[:, :, None, None]

    def inputs(self, dtype, device=DEVICE):
        table = torch.float64 if dtype == torch.float64 else torch.float32
        qkv = self.qkv.to(device, dtype, copy=True).requires_grad_()
        return qkv, self.of_distance.to(device, table, copy=True).requires_grad_()

    def where(self):
        """Positions and lengths on the device of the kernels."""
        return self.positions.to(DEVICE), None if self.lengths is None else self.lengths.to(DEVICE)

    def results(self, output, qkv, of_distance):
        output.backward(self.gradient.to(output))
        return {
            "output": output.detach().double().cpu(),
            **{name: gradient.double().cpu() for name, gradient in zip(("query", "key", "value"), qkv.grad.unbind(2))},
            "of_distance": of_distance.grad.double().cpu(),
        }

    def attend(self, dtype, dropout=0.0, seed=None):
        qkv, of_distance = self.inputs(dtype)
        output = relative_attention_qkv(qkv, of_distance, *self.where(), dropout, seed, self.window)
        return self.results(output, qkv, of_distance)

    def plain(self, dtype=torch.float64, factors=None):
        """``factors`` <float>[B, H, S, S] multiplies the attention weights, as dropout does."""
        qkv, of_distance = self.inputs(dtype, "cpu")
        distances = self.positions[:, None, :] - self.positions[:, :, None] + self.max_positions - 1
        bias = of_distance[:, distances].transpose(0, 1)
        hidden = ~self.valid[:, None, None, :]
        if self.window is not None:
            far = (distances - self.max_positions + 1).abs() > self.window // 2
            # Rows of padding keep one key, so that they are numbers before they are left out.
            hidden = (hidden | far[:, None]) & ~torch.eye(far.shape[1], dtype=torch.bool)
        bias = bias.masked_fill(hidden, float("-inf")).to(dtype)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        weights = (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5 + bias).softmax(dim=-1)
        output = (weights if factors is None else weights * factors) @ value
        return self.results(output.transpose(1, 2) * self.valid[:, :, None, None].to(dtype), qkv, of_distance)


def assert_close(fast, plain):
    """Compare outputs and gradients, which are of the order of one."""
    assert fast.keys() == plain.keys()
    for name in plain:
        torch.testing.assert_close(fast[name], plain[name], rtol=1e-5, atol=1e-5, msg=partial("{}: {}".format, name))


def assert_equal(results, expected):
    """Compare to the last bit."""
    assert results.keys() == expected.keys()
    for name in expected:
        assert torch.equal(results[name], expected[name]), name


CASES = {
    "ragged": lambda: Case([40, 17, 33]),
    "dense, one program's width": lambda: Case([32, 32], heads=1, head_dim=64),
    "shared positions, ragged": lambda: Case([19, 37], heads=1, head_dim=16, shared=True),
    "any order": lambda: Case([35], heads=1, head_dim=16, shuffled=True),
    "one head, one token": lambda: Case([1], heads=1, max_positions=2),
    "width that is not a power of two": lambda: Case([21, 18], heads=1, head_dim=20),
    "widest head": lambda: Case([18], heads=1, head_dim=128, max_positions=24),
    # Blocks have 32 rows and 16 columns: tiles are skipped on both sides, and rows wholly hidden in tiles that are not.
    "window": lambda: Case([70], heads=1, head_dim=16, max_positions=90, window=16),
    "window, ragged": lambda: Case([52, 0, 37, 3], heads=1, head_dim=16, max_positions=70, window=21),
    "window of the token alone": lambda: Case([35, 21], heads=1, head_dim=16, max_positions=60, window=1),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_plain(case):
    case = CASES[case]()
    fast, plain = case.attend(torch.float32), case.plain()
    assert_close(fast, plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_as_exact_as_plain(dtype, request):
    if DEVICE == "cpu" and dtype == torch.bfloat16:
        request.getfixturevalue("exact_bfloat16")
    case = Case([40, 23], heads=1, head_dim=64)
    exact, plain, fast = case.plain(), case.plain(dtype), case.attend(dtype)
    for name in exact:
        error, allowed = ((other[name] - exact[name]).norm() / exact[name].norm() for other in (fast, plain))
        assert error <= allowed, name


def test_separate_queries_keys_and_values():
    """Views of a joint tensor, and tensors of three different layouts."""
    case = Case([9, 18], head_dim=16)
    expected = case.attend(torch.float32)
    for separate in (False, True):
        qkv, of_distance = case.inputs(torch.float32)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        if separate:
            query, key = query.contiguous(), key.transpose(2, 3).contiguous().transpose(2, 3)
            assert len({query.stride(), key.stride(), value.stride()}) == 3
        output = relative_attention(query, key, value, of_distance, *case.where())
        assert output.transpose(1, 2).is_contiguous()
        results = case.results(output.transpose(1, 2), qkv, of_distance)
        assert_equal(results, expected)


def test_the_door_to_attention_reaches_the_kernels():
    """With the bias object that the encoder makes; the table's gradient comes back to it."""
    torch.manual_seed(3)
    lengths = torch.tensor([7, 5])
    results = []
    for backend in ("triton", "plain"):
        torch.manual_seed(4)
        query, key, value = (torch.randn(2, 2, 7, 16, device=DEVICE, requires_grad=True) for _ in range(3))
        table = torch.randn(2, 39, device=DEVICE, requires_grad=True)
        positions = torch.stack([torch.randperm(20)[:7].sort().values for _ in range(2)])
        bias = context_of(table, positions.to(DEVICE), lengths.to(DEVICE))
        output = BACKENDS[backend].attend(query, key, value, bias, 0.0)
        inside = (torch.arange(7) < lengths[:, None])[:, None, :, None].to(DEVICE)
        (output * inside).sin().sum().backward()
        results.append([(output * inside).detach(), query.grad, key.grad, value.grad, table.grad])
    for result, plain in zip(*results):
        torch.testing.assert_close(result, plain, rtol=1e-5, atol=1e-5)
    qkv = torch.stack([query, key, value]).permute(1, 3, 0, 2, 4)
    joint = BACKENDS["triton"].attend_qkv(qkv, bias, 0.0).transpose(1, 2)
    torch.testing.assert_close(joint * inside, results[0][0], rtol=1e-5, atol=1e-5)
    outputs = [BACKENDS["triton"].attend(query, query, query, bias, 0.3) for _ in range(2)]
    assert not torch.equal(*outputs)


def test_padding_is_not_read():
    case = Case([9, 34, 0], heads=1, head_dim=16)
    expected = case.attend(torch.float32)
    case.qkv[~case.valid] = float("nan")
    case.gradient[~case.valid] = float("nan")
    results = case.attend(torch.float32)
    assert_equal(results, expected)
    for name in ("output", "query", "key", "value"):
        assert results[name][~case.valid].abs().max() == 0, name


def test_tiles_out_of_the_window_are_not_read():
    """Two blocks away a NaN of queries, keys, values or gradients does no harm."""
    length = 220 if DEVICE == "cuda" else 130  # by the size of blocks
    case = Case([length], heads=1, head_dim=16, max_positions=230, window=8)
    expected = case.attend(torch.float32)
    case.qkv[:, -20:] = case.gradient[:, -20:] = float("nan")
    results = case.attend(torch.float32)
    for name in ("output", "query", "key", "value"):
        assert torch.equal(results[name][:, :32], expected[name][:, :32]), name
        assert results[name][:, -20:].isnan().all(), name


def test_no_gradient_for_a_bias_that_wants_none():
    case = Case([18])
    qkv, of_distance = case.inputs(torch.float32)
    of_distance.requires_grad_(False)
    relative_attention_qkv(qkv, of_distance, *case.where()).backward(case.gradient.to(qkv))
    assert of_distance.grad is None
    plain = case.plain()
    expected = torch.stack([plain[name] for name in ("query", "key", "value")], dim=2)
    torch.testing.assert_close(qkv.grad.double().cpu(), expected, rtol=1e-5, atol=1e-5)


def test_lists_the_sequences_that_reach_a_block_of_positions():
    from fairseq_maelm.modules.attention.triton.gradients import visits_kernel

    extents = torch.tensor([3, 0, 40, 17, 16, 33] * 3, dtype=torch.int32, device=DEVICE)
    visits = extents.new_full((3, len(extents) + 1), -1)
    visits_kernel[(3,)](extents, visits, len(extents), POSITIONS=16, BLOCK=4)
    for block, row in enumerate(visits.tolist()):
        expected = [number for number, extent in enumerate(extents.tolist()) if extent > 16 * block]
        assert row[0] == len(expected) and row[1 : 1 + len(expected)] == expected


# Dropout


def seed_of(number):
    return torch.tensor([number], device=DEVICE)


def dropout_factors(positions, heads, dropout, seed):
    """Recover what dropout multiplies each weight with: all weights are 1 / S, and values are unit vectors.

    The positions are <int64>[B, S].

    Returns:
        <float64>[B, H, S, S].
    """
    batch, length = positions.shape
    width = next(width for width in (32, 64, 128) if width >= length)
    qkv = torch.zeros(batch, length, 3, heads, width)
    qkv[:, :, 2] = torch.eye(length, width)[:, None, :]
    of_distance = torch.zeros(heads, 2 * int(positions.max()) + 1)
    inputs = (tensor.to(DEVICE) for tensor in (qkv, of_distance, positions))
    output = relative_attention_qkv(*inputs, None, dropout, seed_of(seed)).double().cpu()
    return output[..., :length].transpose(1, 2) * length


def positions_of(*rows):
    return torch.stack([torch.tensor(sorted(row)) for row in rows])


def factors_from_words(case, dropout, seed):
    """Compute what dropout multiplies each weight with from the random words: <float64>[B, H, S, S]."""
    from fairseq_maelm.modules.attention.triton import launch

    qkv, of_distance = (tensor.detach() for tensor in case.inputs(torch.float32))
    words = launch.prepare(*qkv.permute(2, 0, 3, 1, 4), of_distance, *case.where(), dropout, seed).words
    slopes, offsets, keys = (words[:, :, :, : qkv.shape[1]].cpu().long() & 0xFFFFFFFF).unbind(2)
    # A product of 32-bit numbers passes the range of int64, which drops no bit that counts here.
    numbers = (slopes[..., :, None] * keys[..., None, :] + offsets[..., :, None]) & 0xFFFFFFFF
    return (numbers >= round(dropout * 2**32)).double() / (1 - dropout)


@pytest.mark.parametrize(("dtype", "real"), [("float32", False), ("float16", True)])
def test_all_kernels_drop_the_same_weights(dtype, real, real_blocks, monkeypatch):
    """Outputs and all gradients are those of the plain backend under the decisions that the words make."""
    from fairseq_maelm.modules.attention.triton import launch

    if real:
        monkeypatch.setattr(launch, "BLOCKS", real_blocks)
    sizes = {"head_dim": 64, "max_positions": 200, "heads": 1} if real else {"max_positions": 40}
    case, dropout, seed = Case([150, 70] if real else [31, 31], **sizes), 0.3, seed_of(5)
    factors = factors_from_words(case, dropout, seed)
    if not real:
        recovered = dropout_factors(case.positions, 2, dropout, 5)
        torch.testing.assert_close(recovered, factors, rtol=1e-5, atol=1e-5)
    fast, exact = case.attend(getattr(torch, dtype), dropout, seed), case.plain(factors=factors)
    if dtype == "float32":
        assert_close(fast, exact)
        return
    plain = case.plain(torch.float16, factors.half())
    for name in exact:
        error, allowed = ((other[name] - exact[name]).norm() / exact[name].norm() for other in (fast, plain))
        assert error <= allowed, name


def test_dropout_decides_by_seed_sequence_head_and_positions():
    """Other removed tokens and other blocks leave the decision on a pair as it was; all else changes it."""
    every = range(36)
    first = positions_of([p for p in every if p % 6], [p for p in every if p % 6 != 1])
    second = positions_of([p for p in every if p % 6 != 2], [p for p in every if p % 6 != 3])
    tables = []
    for positions, seed in [(first, 1), (second, 1), (first, 2)]:
        kept = dropout_factors(positions, 2, 0.5, seed) > 0
        table = torch.full((2, 2, 36, 36), -1)
        for sequence, row in enumerate(positions):
            table[sequence, :, row[:, None], row[None, :]] = kept[sequence].long()
        tables.append(table)
    known = (tables[0] >= 0) & (tables[1] >= 0)
    assert known.sum() == 2 * 2 * 24 * 24
    assert torch.equal(tables[0][known], tables[1][known])
    both = (tables[0] >= 0) & (tables[2] >= 0)
    agreement = (tables[0] == tables[2])[both].double().mean()
    assert 0.45 < agreement < 0.55
    for one, other in itertools.combinations(tables[1].flatten(0, 1), 2):
        known = (one >= 0) & (other >= 0)
        assert 0.4 < (one == other)[known].double().mean() < 0.6
    table = tables[0][0, 0]
    known = (table >= 0) & (table.t() >= 0) & ~torch.eye(36, dtype=torch.bool)
    assert 0.4 < (table == table.t())[known].double().mean() < 0.6


def test_dropout_is_random():
    """Rate, rows, columns, and rectangles, on which a bad mixture of two words would show."""
    length, heads, dropout = 128, 3, 0.1
    kept = dropout_factors(torch.arange(length)[None], heads, dropout, 3)[0] > 0
    variance = dropout * (1 - dropout)
    centered = kept.double() - (1 - dropout)
    assert abs(centered.mean()) < 4.5 * (variance / centered.numel()) ** 0.5
    for lines in (centered.sum(1), centered.sum(2)):
        assert abs(lines.square().mean() / (length * variance) - 1) < 5 * (2 / lines.numel()) ** 0.5
    products = centered @ centered.transpose(1, 2)
    corners = products.square() - centered.square() @ centered.square().transpose(1, 2)
    corners = corners.triu(1).sum() / 2
    rectangles = heads * (length * (length - 1) / 2) ** 2
    assert abs(corners) < 5 * (rectangles * variance**4) ** 0.5


def test_seeds_follow_the_random_state():
    torch.manual_seed(4)
    first = [attention_triton.draw_seed(torch.device(DEVICE)) for _ in range(2)]
    torch.manual_seed(4)
    assert torch.equal(attention_triton.draw_seed(torch.device(DEVICE)), first[0])
    assert not torch.equal(first[0], first[1])


# As a part of torch


def test_is_a_correct_operator():
    case = Case([9, 5], heads=1, head_dim=16, max_positions=12)
    qkv, of_distance = case.inputs(torch.float32)
    arguments = (qkv, of_distance, *case.where(), 0.25, seed_of(2), 9)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    results = torch.library.opcheck(attention_triton._attend_qkv, arguments, test_utils=checks)
    assert set(results.values()) == {"SUCCESS"}


def test_follows_autocast():
    case = Case([18, 11], heads=1, max_positions=24)
    qkv, of_distance = case.inputs(torch.float32)
    with torch.autocast(DEVICE, torch.float16):
        output = relative_attention_qkv(qkv, of_distance, *case.where())
    assert output.dtype == torch.float16
    results = case.results(output, qkv, of_distance)
    assert qkv.grad.dtype == of_distance.grad.dtype == torch.float32
    exact = case.plain()
    for name in exact:
        assert (results[name] - exact[name]).norm() < 3e-3 * exact[name].norm(), name


# What it refuses


def test_says_why_it_is_unavailable(monkeypatch):
    query = torch.zeros(1, 1, 2, 32)
    monkeypatch.setattr(attention_triton, "INTERPRETED", True)
    assert attention_triton.unavailable_because(query) is None
    assert "float64" in attention_triton.unavailable_because(query.double())
    assert "160" in attention_triton.unavailable_because(torch.zeros(1, 1, 2, 160))
    monkeypatch.setattr(attention_triton, "INTERPRETED", False)
    assert "NVIDIA GPU" in attention_triton.unavailable_because(query)
    with pytest.raises(ValueError, match="NVIDIA GPU"):
        relative_attention(query, query, query, torch.zeros(1, 5), torch.arange(2)[None])
    monkeypatch.setattr(attention_triton, "INSTALLED", False)
    assert "not installed" in attention_triton.unavailable_because(query)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": torch.zeros(2, 1, 3, 32)}, "same shape and dtype"),
        ({"of_distance": torch.zeros(1, 8)}, r"of_distance must have shape \[H = 1, 2 P - 1\]"),
        ({"positions": torch.arange(4)[None].int()}, "positions must be <int64>"),
        ({"lengths": torch.tensor([4])}, r"lengths must be <int64>\[2\]"),
        ({"dropout": 1.0}, "probability"),
        ({"dropout": 0.1}, "seed"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_refuses_what_does_not_fit(changes, message):
    arguments = {name: torch.zeros(2, 1, 4, 32) for name in ("query", "key", "value")}
    arguments.update(of_distance=torch.zeros(1, 9), positions=torch.arange(4)[None])
    arguments.update(changes)
    moved = {name: value.to(DEVICE) if torch.is_tensor(value) else value for name, value in arguments.items()}
    with pytest.raises(ValueError, match=message):
        relative_attention(**moved)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_real_shapes_on_gpu(dtype):
    """The blocks that training uses; twice the same numbers to the last bit."""
    case = Case([435, 307, 1], heads=12, head_dim=64, max_positions=512)
    exact, plain = case.plain(), case.plain(dtype)
    first, second = (case.attend(dtype, 0.0) for _ in range(2))
    for name in exact:
        assert torch.equal(first[name], second[name]), name
        error, allowed = ((other[name] - exact[name]).norm() / exact[name].norm() for other in (first, plain))
        assert error < max(1e-5, allowed), name
