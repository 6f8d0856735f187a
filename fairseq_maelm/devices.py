"""Where a command computes: its argument ``--device``, and one line for what torch cannot compute on here."""

import argparse

import torch


def add_device_argument(parser: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    """Declare ``--device``, by default a GPU if there is one."""
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, help="cpu, cuda, or cuda:1 for the second GPU (a GPU if any)")


def check_device(name: str) -> None:
    """Refuse a device before any work is done for it.

    Raises:
        ValueError: it is neither the CPU nor a GPU that torch finds on this machine.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise ValueError(f"--device {name} cannot be used: give cpu, cuda or cuda:N")
    gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= gpus:
        found = f"{gpus} of them, cuda:0 to cuda:{gpus - 1}" if gpus else "none: use --device cpu"
        raise ValueError(f"--device {name} is not there; of GPUs torch finds {found}")
