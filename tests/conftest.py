"""Settings that every test runs under."""

import os

# Before torch is imported anywhere: test processes side by side must not fight for the cores, and sums that are
# split over another number of threads differ in their last bits.
os.environ.setdefault("OMP_NUM_THREADS", "1")
