#!/usr/bin/env bash
# Table 7 for a checkpoint: zero-shot, prompt-based few-shot and head-based few-shot on GLUE tasks.
#
#     maelm prepare-few-shot GLUE --output SPLITS
#     bash examples/prompting/run.sh CHECKPOINT --data DATA --splits SPLITS --output RUNS [OPTIONS]
#
# The same command resumes an interrupted run. `--help` lists the options; README.md says what it costs.
set -euo pipefail

FOLDER=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$FOLDER/../.." && pwd)

if ! command -v fairseq-train >/dev/null && [[ -x $ROOT/.venv/bin/fairseq-train ]]; then
    PATH=$ROOT/.venv/bin:$PATH
fi
command -v fairseq-train >/dev/null || {
    echo "run.sh: fairseq-train is not installed: run 'bash scripts/setup.sh', or activate the environment that has it" >&2
    exit 2
}
exec python "$FOLDER/few_shot.py" "$@"
