"""What else of torch has to be replaced for a fake GPU, and a record of what happens on it."""

import re
import weakref
from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# What returns a view, or memory without content: the GPU has nothing to do.
_NOTHING_LAUNCHED = re.compile(
    "_?(unsafe_)?(view|reshape)(_as|_alias)?|transpose|permute|t|expand|slice|select|(un)?squeeze|as_strided|alias|detach|"
    "unbind|split(_with_sizes)?|unflatten|lift_fresh|is_same_size|sym_size|device|(new_)?empty(_like|_strided)?"
)
# Whose time is not that of the bytes they move: products and attention; and what touches few of a tensor's elements.
_NOT_COUNTED = re.compile(".*mm|.*attention.*|gather|scatter_?")
_ROUNDED_TO = 512  # bytes, by torch's allocator


def plug_in(capability: tuple[int, int] = (9, 0)) -> None:
    """Make this process believe in one CUDA GPU, until it ends."""
    if torch.version.cuda is not None:
        raise SystemExit("this needs a torch that was built without CUDA")
    torch._C._set_only_lift_cpu_tensors(True)
    properties = SimpleNamespace(major=capability[0], minor=capability[1])
    replacements: dict[str, Any] = {
        "torch.version.cuda": "13.0",
        "torch.cuda.get_device_properties": lambda device=None: properties,
        "torch.cuda.get_device_capability": lambda device=None: capability,
        "torch.cuda.is_bf16_supported": lambda *args, **options: True,
        "torch.cuda.current_device": lambda: 0,
        "torch.cuda.device_count": lambda: 1,
        "torch.cuda._lazy_init": lambda: None,
        "torch.cuda.amp.common.amp_definitely_not_available": lambda: False,
        "torch.nn.functional.scaled_dot_product_attention": _attention,
    }
    for name, replacement in replacements.items():
        mock.patch(name, replacement).start()


def _attention(query: Any, key: Any, value: Any, mask: Any = None, dropout: float = 0.0, causal: bool = False) -> Any:
    """Replace torch's choice of a backend, which would query CUDA."""
    assert not torch.backends.cuda.cudnn_sdp_enabled(), "cuDNN would make a plan for every shape"
    operators = torch.ops.aten
    if mask is None and query.dtype != torch.float32:
        return operators._scaled_dot_product_flash_attention(query, key, value, dropout, causal)[0]
    if mask is not None:
        mask = mask.expand(*query.shape[:3], key.shape[2])
    return operators._scaled_dot_product_efficient_attention(query, key, value, mask, True, dropout, causal)[0]


class Record(TorchDispatchMode):
    """A context manager that records the operations on the fake GPU.

    Attributes:
        launches: of kernels, by the name of the operation; the package's own attention counts as one.
        copies: operations that move data between host and device.
        bytes, peak: that tensors on the device hold now, and held at most.
        moved: bytes that launches read and wrote, those of matrix products and attention apart.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.copies: list[str] = []
        self.bytes = self.peak = self.moved = 0
        self._seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and take notes."""
        output = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, output)) if isinstance(leaf, torch.Tensor)]
        for tensor in tensors:
            self.hold(tensor)
        name = func.overloadpacket._qualified_op_name.split("::")[-1]
        if len({tensor.device.type for tensor in tensors}) > 1:
            self.copies.append(name)
        if not _NOTHING_LAUNCHED.fullmatch(name) and any(tensor.device.type == "cuda" for tensor in tensors):
            self.launches[name] += 1
            if not _NOT_COUNTED.fullmatch(name):
                given = tensors[:-1] if name == "copy_" else tensors  # which returns what it wrote
                self.moved += sum(tensor.numel() * tensor.element_size() for tensor in given)
        return output

    def hold(self, tensor: torch.Tensor) -> None:
        """Count a tensor's memory until nobody holds it."""
        storage = tensor.untyped_storage()
        if tensor.device.type != "cuda" or storage in self._seen:
            return
        size = -(-storage.nbytes() // _ROUNDED_TO) * _ROUNDED_TO
        self._seen[storage] = size
        self.bytes += size
        self.peak = max(self.peak, self.bytes)
        weakref.finalize(storage, self._release, size)

    def _release(self, size: int) -> None:
        self.bytes -= size
