"""A training step on a GPU that is not there: what it launches, asks of the device, copies, and keeps in memory.

A CUDA GPU made of fake tensors, which have shapes and a device and no data. Importing this package plugs it in, until
the process ends; that needs a torch that was built for CPUs and is not imported yet, and a C++ compiler.
"""

import ctypes
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn


def leave() -> NoReturn:
    """End the process with status 0 and without C++'s destructors.

    They sometimes end it with `terminate called without an active exception`, as autograd's thread for the fake device
    may still be running.
    """
    sys.stdout.flush()
    os._exit(0)


def load_guard() -> None:
    """Compile and load a CUDA device that does nothing: torch looks for one while it is imported."""
    found = importlib.util.find_spec("torch")
    if "torch" in sys.modules or found is None or found.origin is None:
        raise ImportError("torch must be installed, and imported only after fake_gpu")
    torch = Path(found.origin).parent
    libraries = torch / "lib"
    includes = [f"-I{torch / 'include'}", f"-I{torch / 'include/torch/csrc/api/include'}"]
    links = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-ltorch_cpu", "-lc10"]
    with tempfile.TemporaryDirectory() as folder:
        library, source = Path(folder, "guard.so"), Path(__file__).with_name("guard.cpp")
        words = ["g++", "-std=c++20", "-O0", "-shared", "-fPIC", *includes, str(source), "-o", str(library), *links]
        subprocess.run(words, check=True)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


load_guard()
