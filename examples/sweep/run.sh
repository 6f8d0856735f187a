#!/usr/bin/env bash
# The whole grid of GLUE's small tasks (the paper's Table 4) in one command: prepare, fine-tune, report.
#
#     bash examples/sweep/run.sh GLUE DATA OUTPUT NAME=CHECKPOINT [NAME=CHECKPOINT ...] [MAELM SWEEP OPTIONS]
#
# GLUE        the folder of the official files: CoLA, RTE, MRPC, STS-B, each as unpacked
# DATA        the folder of `maelm prepare corpus` that the checkpoints were pretrained on, for its vocabulary
# OUTPUT      for tasks/ and sweep/; the same command goes on after an interruption
# CHECKPOINT  of pretraining; "random" for random weights of the first one's size
#
# For example:  run.sh GLUE DATA runs/glue ours=checkpoint_last.pt random=random --gpus 0 0 0
#
# Besides the options of `maelm sweep`:
#     --tasks "NAMES"   names of the package's recipes ("CoLA RTE MRPC STS-B")
#     --max-length N    longest example in tokens; longer ones are cut when they are prepared (512)
#
# 1,280 runs a model, which train on 33 million examples: see README.md for what that costs, and --dry-run for the
# commands. --only lr=2e-5 epochs=3 batch-size=32 warm-up=0.06 is a sixty-fourth of it.

# shellcheck source=examples/shell.sh
source "$(dirname "${BASH_SOURCE[0]}")/../shell.sh"

(($# >= 4)) || fail "usage: run.sh GLUE DATA OUTPUT NAME=CHECKPOINT [NAME=CHECKPOINT ...] [MAELM SWEEP OPTIONS]"
GLUE=$1 DATA=$2 OUTPUT=$3
shift 3
CHECKPOINTS=()
while (($#)) && [[ $1 != -* ]]; do
    [[ $1 == ?*=?* ]] || fail "'$1' is not NAME=CHECKPOINT"
    CHECKPOINTS+=(--checkpoint "$1")
    shift
done
((${#CHECKPOINTS[@]})) || fail "no checkpoint is given (NAME=PATH)"
take_options "TASKS=CoLA RTE MRPC STS-B" MAX_LENGTH=512 -- "$@"
set -- "${REST[@]}"
need maelm

read -r -a NAMES <<<"$TASKS"

# What is prepared already, from the same files, is kept.
maelm prepare glue "$GLUE" --vocabulary "$DATA" --output "$OUTPUT/tasks" --tasks "${NAMES[@]}" \
    --max-length "$MAX_LENGTH" >/dev/null
maelm sweep "${NAMES[@]}" --data "$OUTPUT/tasks" --output "$OUTPUT/sweep" "${CHECKPOINTS[@]}" "$@"
[[ " $* " == *" --dry-run "* ]] || maelm report "$OUTPUT/sweep" >/dev/null
