#!/usr/bin/env bash
# Random accidents with every command that writes: kills, a full disk, two processes, a lost rank.
#
#     bash scripts/robustness.sh [--trials N] [--seed N]     200 trials take about half an hour on one core
#
# Writes the table of what was tried and survived (see SECURITY.md); status 1 if something was not survived. Takes the
# environment of scripts/setup.sh, or the active one.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PYTHON=${VIRTUAL_ENV:-${MAELM_VENV:-$ROOT/.venv}}/bin/python
cd "$ROOT"
# A full disk is a small one that it mounts in a separate namespace, which needs no rights on most systems.
ALONE=(unshare --map-root-user --mount)
"${ALONE[@]}" true 2>/dev/null || ALONE=()
OMP_NUM_THREADS=1 PYTHONPATH=$ROOT:$ROOT/tests:$ROOT/docs exec "${ALONE[@]}" "$PYTHON" -m robustness.trials "$@"
