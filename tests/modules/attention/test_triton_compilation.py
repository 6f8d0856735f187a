"""The Triton kernels compile for GPUs that are not here, and ask for no more of them than kernel_ceilings.json allows.

That file records spilled bytes and instructions for a pair of tokens, by version of Triton and case. A change may lower
a number and not raise it: this file as a program takes over what is less in files of benchmarks/kernel_compilation.py
(with benchmarks/ on the path).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from training_step.store import layout

ROOT = Path(__file__).parents[3]
CEILINGS = Path(__file__).with_name("kernel_ceilings.json")
KERNELS = ("forward_kernel", "query_gradient_kernel", "key_value_gradient_kernel", "pair_gradient_kernel")
# What one process compiles: options of benchmarks/kernel_compilation.py.
QUICK = {
    # Multiples of 16 and others, one token, and more than one sequence's worth of blocks.
    "Hopper": ["--capability", "90", "--dtype", "bfloat16", "--dropout", "0.1", "--lengths", "435", "432", "1", "64"],
    "Hopper, no dropout": ["--capability", "90", "--dtype", "bfloat16", "--dropout", "0"],
    "Ampere": ["--capability", "80", "--dtype", "bfloat16", "--dropout", "0.1"],
    # The loops differ in their bounds alone.
    "Hopper, local": ["--capability", "90", "--dtype", "bfloat16", "--dropout", "0.1", "--window", "128"],
}
SLOW = {
    f"{capability} {dtype}": ["--capability", capability, "--dtype", dtype, "--dropout", "0.1", "--head-dim", *widths]
    for capability in ("80", "90", "100")
    for dtype in ("bfloat16", "float16", "float32")
    for widths in [("32", "64", "128")]
}


def compile_kernels(options, folder):
    """Return the version of Triton, and the figures of each case; in a process without Triton's interpreter."""
    output = folder / "figures.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "kernel_compilation.py"), *options, "--output", str(output)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, env={**environment, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text())
    return found["triton"], found["kernels"]


def described(figure):
    """Name a case in the file of ceilings."""
    dropout = "" if figure["dropout"] else ", no dropout"
    local = ", local" if figure.get("window") else ""
    return f"{figure['kernel']} sm_{figure['capability']} {figure['dtype']} {figure['head_dim']}{dropout}{local}"


def ceilings_of(version, ceilings):
    """Return the ceilings of a version of Triton, or of the newest one before it that has some."""
    parts = tuple(int(part) for part in version.split(".")[:2])
    known = sorted((tuple(map(int, name.split("."))), name) for name in ceilings)
    return ceilings[max((each for each in known if each[0] <= parts), default=known[0])[1]]


def assert_lean(version, figures):
    ceilings = ceilings_of(version, json.loads(CEILINGS.read_text()))
    for figure in figures:
        name = described(figure)
        assert figure["fits"], f"{name} needs {figure['shared']} bytes of shared memory"
        if figure["kernel"] not in KERNELS:
            continue
        # What is not recorded has to compile and to fit; training's own cases are recorded for every version.
        case = (figure["dtype"], figure["head_dim"], figure["capability"] < 100, figure["dropout"], figure["window"])
        assert name in ceilings or case != ("bfloat16", 64, True, 0.1, 0), f"record {name}"
        for what, most in ceilings.get(name, {}).items():
            assert figure[what] <= most, f"{name}: {what} {figure[what]}, allowed {most}"
        if figure["capability"] == 90 and figure["dtype"] != "float32":
            assert figure["wgmma"] > 0, f"{name} does not use Hopper's matrix instructions"


@pytest.fixture(scope="module", autouse=True)
def tools():
    triton = pytest.importorskip("triton", reason="needs triton, which brings the compiler and the assembler")
    if not (Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm").exists():
        pytest.skip("this triton comes without NVIDIA's disassembler")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.exhaustive] * (case != "Hopper")) for case in QUICK]
)
def test_compiles_and_is_lean(case, tmp_path):
    version, figures = compile_kernels(QUICK[case], tmp_path)
    assert_lean(version, figures)
    # Triton 3.2, which comes with torch 2.6, allocates registers a little worse.
    most_spills = 64 if case == "Ampere" else 8 if version.startswith("3.2.") else 0
    versions = {kernel: set() for kernel in KERNELS}
    for figure in (each for each in figures if each["kernel"] in KERNELS):
        assert figure["blocks"] >= 2 and figure["spills"] <= most_spills, figure
        versions[figure["kernel"]].add(figure["hash"])
    assert {len(hashes) for hashes in versions.values()} == {1}, "a kernel is compiled again for another length"


@pytest.mark.exhaustive
@pytest.mark.parametrize("padded", ["padded", "full"])
@pytest.mark.parametrize("case", SLOW)
def test_every_case_compiles(case, padded, tmp_path):
    options = SLOW[case] if padded == "padded" else [*SLOW[case], "--full"]
    version, figures = compile_kernels(options, tmp_path)
    assert_lean(version, figures)


def lower_ceilings(paths):
    """Take over what is less than before, or new, from files of benchmarks/kernel_compilation.py."""
    ceilings = json.loads(CEILINGS.read_text()) if CEILINGS.exists() else {}
    for found in (json.loads(Path(path).read_text()) for path in paths):
        own = ceilings.setdefault(".".join(found["triton"].split(".")[:2]), {})
        for figure in found["kernels"]:
            if figure["kernel"] in KERNELS:
                old = own.get(described(figure), figure)
                own[described(figure)] = {what: min(figure[what], old[what]) for what in ("spills", "instructions")}
    CEILINGS.write_text(layout(ceilings) + "\n")


if __name__ == "__main__":
    lower_ceilings(sys.argv[1:])
