"""Compile the Triton kernels for GPUs that are not there, and count what the compiler made of them.

    python benchmarks/kernel_compilation.py [--capability 90] [--dtype bfloat16] [--head-dim 64] [--output FILE]

A stand-in for Triton's driver names a GPU, the kernels are compiled and not launched, and CPU tensors stand for CUDA
tensors, of which Triton looks at types and alignment alone. So the package's own launcher chooses blocks, warps and
specializations, as on a GPU. Registers and spills are the assembler's, instructions those of the longest loop.
"""

import argparse
import itertools
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from training_step.store import layout
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.jit import JITFunction

from fairseq_maelm.modules.attention.triton import kernels, launch

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
# Bytes of shared memory that a block may have and that a multiprocessor has; 1 KiB of each block is the system's.
SHARED_MEMORY = {80: (166_912, 167_936), 90: (232_448, 233_472), 100: (232_448, 233_472)}
# The kernels with a loop over pairs of tokens; the others prepare their inputs.
LOOPS = ("forward_kernel", "query_gradient_kernel", "key_value_gradient_kernel", "pair_gradient_kernel")

# Figures by the compiled kernel's hash: other lengths get the same kernel.
COUNTED: dict[str, dict[str, Any]] = {}


class NamedTarget(DriverBase):
    """Says which GPU to compile for and nothing else."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # Each has its own cache of compiled kernels.

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> None:
        return None


@contextmanager
def compile_only(capability: int) -> Iterator[list[tuple[str, Any, dict[str, Any]]]]:
    """Give a list of what was launched: name, compiled kernel, options."""
    launched: list[tuple[str, Any, dict[str, Any]]] = []
    run = JITFunction.run

    def compile_kernel(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        launched.append((self.fn.__name__, kernel.result() if hasattr(kernel, "result") else kernel, options))
        return kernel

    triton.runtime.driver.set_active(NamedTarget(capability))
    with mock.patch.object(JITFunction, "run", compile_kernel):
        yield launched


def tool(name: str, *words: str) -> str:
    """Run one of the programs that come with Triton."""
    return subprocess.run([str(TOOLS / name), *words], capture_output=True, text=True, check=True).stdout


def longest_loop(machine_code: str) -> list[str]:
    """Return the names of the instructions of the longest loop."""
    names: list[str] = []
    labels: dict[str, int] = {}
    loop: list[str] = []
    for line in machine_code.splitlines():
        if label := re.match(r"\s*(\.L_\w+):", line):
            labels[label[1]] = len(names)
        elif code := re.search(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)(.*?);", line):
            names.append(code[1])
            target = re.search(r"\.L_\w+", code[2]) if code[1].startswith("BRA") else None
            if target and len(names) - labels.get(target[0], len(names)) > len(loop):
                loop = names[labels[target[0]] :]
    return list(loop)


def figures(name: str, kernel: Any, capability: int, options: dict[str, Any]) -> dict[str, Any]:
    """Return what one compiled kernel needs and how long its loop is."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = tool("cuobjdump", "--dump-resource-usage", file.name)
        machine_code = tool("nvdisasm", "-c", file.name)
    registers, spills = (int(re.search(rf"{word}:(\d+)", usage)[1]) for word in ("REG", "STACK"))  # type: ignore[index]
    shared, warps = kernel.metadata.shared, kernel.metadata.num_warps
    most, available = SHARED_MEMORY[capability]
    blocks = min(65_536 // (-(-registers // 8) * 256) // warps, available // (shared + 1024), 64 // warps, 32)
    result = {
        "hash": kernel.hash,
        "registers": registers,
        "spills": spills,
        "shared": shared,
        "fits": shared <= most,
        "blocks": blocks,
    }
    if name in LOOPS:
        loop = longest_loop(machine_code)
        tile = options["ROWS"] * options["COLUMNS"]
        result |= {
            "block": [options["ROWS"], options["COLUMNS"], warps, kernel.metadata.num_stages],
            "instructions": round(len(loop) * 32 * warps / tile, 2),
            "wgmma": sum(each.startswith("HGMMA") for each in loop),
        }
    return result


def compile_attention(
    capability: int, dtype: torch.dtype, head_dim: int, dropout: float, length: int, window: int, full: bool
) -> dict[str, dict[str, Any]]:
    """Compile everything that one call forward and backward launches; figures by kernel.

    Without padding if ``full``, and with local attention if ``window`` is not 0.
    """
    batch, heads, positions = 2, 12, 512
    query, key, value = torch.zeros(batch, length, 3, heads, head_dim, dtype=dtype).permute(2, 0, 3, 1, 4)
    where = (torch.arange(length).repeat(batch, 1), None if full else torch.tensor([length, length - 1]))
    seed = torch.zeros(1, dtype=torch.int64)
    inputs = (query, key, value, torch.zeros(heads, 2 * positions - 1), *where, dropout, seed, window or None)
    with compile_only(capability) as launched:
        output, log_sums = launch.forward(*inputs)
        launch.backward(torch.zeros_like(output), *inputs, output, log_sums, True)
    for name, kernel, options in launched:
        if kernel.hash not in COUNTED:
            COUNTED[kernel.hash] = figures(name, kernel, capability, options)
    return {name: COUNTED[kernel.hash] for name, kernel, _ in launched}


def main() -> None:
    """Compile what is asked for; print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", type=int, nargs="+", default=[90], choices=SHARED_MEMORY)
    parser.add_argument("--dtype", nargs="+", default=["bfloat16"], choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64])
    parser.add_argument("--dropout", type=float, nargs="+", default=[0.1])
    parser.add_argument("--lengths", type=int, nargs="+", default=[435])
    parser.add_argument("--window", type=int, nargs="+", default=[0], help="of local attention; 0 for full attention")
    parser.add_argument("--full", action="store_true", help="no sequence has padding")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    options = parser.parse_args()
    if kernels.INTERPRETED.value:
        parser.error("TRITON_INTERPRET=1 is set, so kernels are interpreted instead of compiled: unset it")
    found = []
    names = ("capability", "dtype", "head_dim", "dropout", "length", "window")
    for case in itertools.product(
        options.capability, options.dtype, options.head_dim, options.dropout, options.lengths, options.window
    ):
        capability, dtype, *others = case
        compiled = compile_attention(capability, getattr(torch, dtype), *others, full=options.full)
        for name, figure in compiled.items():
            found.append({"kernel": name, **dict(zip(names, case)), **figure})
            print(found[-1], flush=True)
    if options.output:
        options.output.write_text(layout({"triton": triton.__version__, "kernels": found}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
