#!/usr/bin/env bash
# Table 7 for a checkpoint: zero-shot, prompt-based few-shot and head-based few-shot on GLUE tasks.
#
#     python examples/prompting/few_shot_splits.py GLUE --output SPLITS
#     bash examples/prompting/run.sh --checkpoint CHECKPOINT --splits SPLITS --output RUNS [OPTIONS]
#
# The same command resumes an interrupted run. `--help` lists the options; README.md says what it costs.

# shellcheck source=examples/shell.sh
source "$(dirname "${BASH_SOURCE[0]}")/../shell.sh"

need maelm
exec python "$ROOT/examples/prompting/few_shot.py" "$@"
