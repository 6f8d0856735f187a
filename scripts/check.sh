#!/usr/bin/env bash
# Every check of the project: lint, format, types, the documentation site, tests. Sets the environment up first.
#
#     bash scripts/check.sh [PYTEST ARGUMENTS]     for example: bash scripts/check.sh -m exhaustive
#     bash scripts/check.sh --fast                 two minutes: lint, types, and the quick tests of the core
set -euo pipefail

FAST=()
if [[ ${1:-} == --fast ]]; then
    shift
    FAST=(-m "not slow and not exhaustive" tests/contracts tests/data tests/models tests/modules tests/criterions tests/plain)
fi

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${MAELM_VENV:-$ROOT/.venv}
[[ $VENV == /* ]] || VENV=$PWD/$VENV
export MAELM_VENV=$VENV
bash "$ROOT/scripts/setup.sh" dev,docs,hf,onnx,plots,sentence-transformers,slurm,tensorboard

cd "$ROOT"
# The tests start the project's and fairseq's commands by name.
export PATH=$VENV/bin:$PATH
# All processes use the bytecode of the first one that imports a module.
unset PYTHONDONTWRITEBYTECODE
# Two test processes with one thread each use two cores better than one process, or two that fight for them.
export OMP_NUM_THREADS=1

FAILED=()
check() {
    local name=$1 begin=$SECONDS
    shift
    printf '\n=== %s: %s\n' "$name" "$*"
    "$@" || FAILED+=("$name")
    printf '=== %s took %d s\n' "$name" $((SECONDS - begin))
}

# All of them run, so that one round shows everything that is wrong.
check lint python -m ruff check .
check format python -m ruff format --check --diff .
check spelling codespell $(git ls-files)
check types python -m mypy
if ((${#FAST[@]} == 0)); then
    # Not with --quiet, under which --strict counts no warnings.
    check docs env NO_MKDOCS_2_WARNING=1 python -m mkdocs build --strict
fi
check tests python -m pytest --numprocesses 2 --dist loadfile --durations 10 "${FAST[@]}" "$@"

if ((${#FAILED[@]})); then
    printf '\nchecks failed: %s\n' "${FAILED[*]}" >&2
    exit 1
fi
printf '\nall checks passed\n'
