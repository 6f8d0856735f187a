#!/usr/bin/env bash
# Random accidents with every command that writes: kills, changed bytes, a full disk, two processes, a lost rank.
#
#     bash scripts/robustness.sh [--trials N] [--seed N]     200 trials take about a quarter of an hour on one core
#
# Writes the table of what was tried and survived (see SECURITY.md); status 1 if something was not survived. Takes the
# environment of scripts/setup.sh, or the active one.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHON=${VIRTUAL_ENV:-${MAELM_VENV:-$ROOT/.venv}}/bin/python
cd "$ROOT"
OMP_NUM_THREADS=1 PYTHONPATH=$ROOT:$ROOT/tests exec "$PYTHON" -m robustness.trials "$@"
