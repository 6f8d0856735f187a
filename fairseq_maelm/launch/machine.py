"""The hardware and precision of a training, their command-line options, and the options of fairseq-train for them."""

import os
import shutil
from typing import Any, NamedTuple

from fairseq_maelm.options import UsageError, number

PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "fp16": {"fp16": True, "fp16-init-scale": 4, "fp16-scale-window": 128},
}
# Options of fairseq-train that follow from options of all training commands.
OF_MACHINE = {
    **dict.fromkeys(("distributed-world-size", "cpu"), "--gpus"),
    **dict.fromkeys(("fp16", "bf16", "precision"), "--precision"),
}
# With these variables fairseq takes the number of GPUs from torchrun or SLURM.
_OF_TORCHRUN = {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"}
_OF_SLURM = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}
# The assumed memory in bytes of a GPU of another machine.
UNKNOWN_GPU = 40e9


class Machine(NamedTuple):
    """The hardware and precision of a run."""

    gpus: int  # number of GPUs, 0 for the CPU
    precision: str  # one of PRECISIONS
    threads: int = 1  # of the CPU

    def options(self) -> dict[str, Any]:
        """Return the options of fairseq-train for this machine."""
        device = {"num-workers": 2} if self.gpus else {"cpu": True, "num-workers": 0}
        return {"distributed-world-size": max(1, self.gpus), **device, **PRECISIONS[self.precision]}


def add_machine_arguments(parser: Any, gpus: str = "those of the machine") -> None:
    """Declare ``--gpus``, ``--precision`` and ``--dry-run``; ``gpus`` is the help text for the default number."""
    parser.add_argument(
        "--gpus", type=number(int, 0), metavar="N", help=f"number of GPUs, 0 for the CPU (default: {gpus})"
    )
    add_precision(parser)
    add_dry_run(parser, "print the command")


def add_precision(parser: Any) -> None:
    """Declare ``--precision``."""
    parser.add_argument(
        "--precision", choices=PRECISIONS, help="precision of the computation (default: fp16 on GPUs, fp32 on CPUs)"
    )


def add_dry_run(parser: Any, shown: str) -> None:
    """Declare ``--dry-run``."""
    parser.add_argument("--dry-run", action="store_true", help=f"check everything and {shown}, without training")


def count_gpus(asked: int | None, most: int | None = None, only_show: bool = False) -> int:
    """Return the number of GPUs to use: ``asked`` or, if None, all that fairseq would use but at most ``most``.

    If this machine has no GPU and ``only_show`` is true, any number is accepted, for commands meant for other machines.
    Otherwise a number is refused that this machine, torchrun or SLURM does not provide.
    """
    import torch  # takes seconds

    visible = torch.cuda.device_count()  # respects CUDA_VISIBLE_DEVICES
    launched = _launched(visible)
    found = launched if launched is not None and visible else visible
    number = min(most or found, found) if asked is None else asked
    if processes_of_torchrun() > 1 and (number < 2 or not visible):
        raise UsageError(f"{apart(bool(number and visible))}{f', or give --gpus {launched}' if visible else ''}")
    if asked is None:
        return number
    # Otherwise an update would have another size than the recipe's.
    if asked > 1 and launched not in (None, asked):
        raise UsageError(
            f"--gpus {asked}, but fairseq would use {launched}, the number of torchrun or SLURM: give --gpus "
            f"{launched}, or hide GPUs with CUDA_VISIBLE_DEVICES"
        )
    elsewhere = ({"WORLD_SIZE"} | _OF_SLURM) & os.environ.keys()
    if asked > visible and not elsewhere and (visible or not only_show):
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        reason = "" if shown is None else f" with CUDA_VISIBLE_DEVICES={shown}"
        raise UsageError(f"--gpus {asked}, but torch finds {visible or 'no GPU'} here{reason}")
    return asked


def processes_of_torchrun() -> int:
    """Return the number of processes that torchrun has started on all machines, 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if os.environ.keys() >= _OF_TORCHRUN else 1


def apart(has_gpu: bool) -> str:
    """Return why torchrun's processes cannot share a run that has one process, and what to do."""
    device = "one GPU" if has_gpu else "a CPU"
    return f"torchrun started {processes_of_torchrun()} processes, but a run on {device} has one: omit torchrun"


def _launched(visible: int) -> int | None:
    """Return the number of GPUs that torchrun or SLURM makes fairseq use; None if fairseq's option decides.

    It is the number of torchrun's processes or, in SLURM with one task on each node, that of all nodes' GPUs.
    """
    given = os.environ
    if given.keys() >= _OF_TORCHRUN:
        return processes_of_torchrun()
    if not visible or not given.keys() & _OF_SLURM or shutil.which("scontrol") is None:
        return None
    nodes = int(given.get("SLURM_NNODES", 1))
    tasks = given.get("SLURM_NTASKS_PER_NODE") or int(given.get("SLURM_NTASKS", nodes)) // nodes
    return nodes * visible if int(tasks) == 1 else None


def memory_of_gpus() -> float:
    """Return the memory in bytes of the smallest GPU of this machine, or a usual one if it has none."""
    import torch  # takes seconds

    gpus = range(torch.cuda.device_count())
    return min((torch.cuda.get_device_properties(gpu).total_memory for gpu in gpus), default=UNKNOWN_GPU)


def machine_of(gpus: int, precision: str | None, threads: int = 1) -> Machine:
    """Return a machine, by default with fp16 on GPUs and fp32 on CPUs; raise a UsageError for fp16 without a GPU."""
    if precision == "fp16" and not gpus:
        raise UsageError("--precision fp16 needs a GPU: give --gpus, or use bf16 or fp32")
    return Machine(gpus, precision or ("fp16" if gpus else "fp32"), threads)
