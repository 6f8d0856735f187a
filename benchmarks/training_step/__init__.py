"""The parts of benchmarks/pretraining.py: contenders, worker processes, arithmetic, reports."""
