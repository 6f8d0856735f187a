"""Settings that every test runs under."""

import os
import signal

# A shell starts background jobs with SIGINT ignored, and commands that the tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before torch is imported anywhere: test processes side by side must not fight for the cores, and sums that are
# split over another number of threads differ in their last bits.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from end_to_end.toy import toy_data
from hypothesis import HealthCheck, settings

from fairseq_maelm import register

# The toy corpus, prepared once for all tests of a process.
__all__ = ["toy_data"]

# Timings never decide a test: on a busy machine an example takes longer than hypothesis allows.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# Without a GPU Triton's kernels run in its interpreter. Triton decides that when it is imported, by whichever test.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# As in a process of fairseq-train. What a fresh process knows, and when, is the matter of test_registration.py.
register()
