"""Clocks and memory of one process."""

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_STATUS = Path("/proc/self/status")


def synchronize(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


class Clock:
    """Wall-clock and processor time since it was made, the device's work included."""

    def __init__(self, device: str) -> None:
        self._device = device
        synchronize(device)
        self._wall, self._processor = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Seconds: "wall", and "processor" of all threads of this process."""
        synchronize(self._device)
        return {"wall": time.perf_counter() - self._wall, "processor": time.process_time() - self._processor}


class Stages:
    """Adds up the time spent between the starts and ends of named stages."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.seconds: dict[str, float] = {}
        self._running: dict[str, float] = {}
        self.recording = False

    def start(self, stage: str) -> None:
        """Start a stage."""
        if self.recording:
            synchronize(self._device)
            self._running[stage] = time.perf_counter()

    def end(self, stage: str) -> None:
        """End a stage."""
        if self.recording and stage in self._running:
            synchronize(self._device)
            elapsed = time.perf_counter() - self._running.pop(stage)
            self.seconds[stage] = self.seconds.get(stage, 0.0) + elapsed

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time added to a stage."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.start(stage)
            try:
                return function(*args, **kwargs)
            finally:
                self.end(stage)

        return call

    def watch(self, stage: str, module: torch.nn.Module | None) -> None:
        """Add the time of a module's forward passes to a stage."""
        if module is not None:
            module.register_forward_pre_hook(lambda *_: self.start(stage))
            module.register_forward_hook(lambda *_: self.end(stage))


class PeakMemory:
    """The most memory that this process held since ``reset``: on a GPU what torch allocated, otherwise resident.

    fairseq's trainer resets torch's record after every step, so its call is made to keep what the record held.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._kept = 0
        if device == "cuda":
            self._reset_record = torch.cuda.reset_peak_memory_stats
            torch.cuda.reset_peak_memory_stats = self._keep

    def _keep(self, *args: Any, **kwargs: Any) -> None:
        self._kept = max(self._kept, torch.cuda.max_memory_allocated())
        self._reset_record(*args, **kwargs)

    def reset(self) -> None:
        """Forget the peak of the past."""
        if self._device == "cuda":
            self._reset_record()
            self._kept = 0
        elif _STATUS.exists():
            # Documented in proc(5): 5 resets the high-water mark. Where that is not allowed the mark stays.
            try:
                Path("/proc/self/clear_refs").write_text("5")
            except OSError:
                sys.stderr.write("the kernel does not reset the peak of resident memory: set-up is included\n")

    def read(self) -> int:
        """Bytes."""
        if self._device == "cuda":
            return max(self._kept, torch.cuda.max_memory_allocated())
        if _STATUS.exists():
            marks = [line.split() for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM:")]
            if marks:
                return int(marks[0][1]) * 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def machine() -> dict[str, Any]:
    """Describe the machine: processor, memory, versions, GPU."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("fairseq-fixed", "fairseq", "numpy", "transformers", "triton"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    found: dict[str, Any] = {"processor": _processor(), "cores": os.cpu_count(), "versions": versions}
    found["memory_gigabytes"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        versions["cuda"] = str(torch.version.cuda)
    return found


def _processor() -> str:
    import platform

    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
