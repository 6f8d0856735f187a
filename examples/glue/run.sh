#!/usr/bin/env bash
# Fine-tune a pretrained checkpoint on one GLUE task with one setting, as the task's recipe says.
#
#     bash examples/glue/run.sh TASK TASKS CHECKPOINT SAVE_DIR [FAIRSEQ OPTIONS]
#
# TASK        a recipe's name: CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE
# TASKS       the folder that `maelm prepare-glue` wrote
# CHECKPOINT  of pretraining; its decoder is dropped, its sizes are taken over
# SAVE_DIR    for the new checkpoints; the same command resumes from checkpoint_last.pt there
#
# Environment variables: LEARNING_RATE, EPOCHS, BATCH_SIZE, WARM_UP_PROPORTION, SEED, GPUS, PRECISION and DRY_RUN, as in
# examples/finetuning/finetune.sh, which does the work.

# shellcheck source=examples/shell.sh
source "$(dirname "${BASH_SOURCE[0]}")/../shell.sh"

(($# >= 4)) || fail "usage: run.sh TASK TASKS CHECKPOINT SAVE_DIR [FAIRSEQ OPTIONS]"
TASK=$1 TASKS=$2 CHECKPOINT=$3 SAVE_DIR=$4
shift 4

WORDS=$(python "$ROOT/examples/glue/recipe_options.py" "$ROOT/examples/glue/recipes/$TASK.yaml")
mapfile -t OPTIONS <<<"$WORDS"
DATA=$TASKS/${OPTIONS[0]}
[[ -f $DATA/manifest.json ]] || fail "$DATA was not written by 'maelm prepare-glue': prepare the task first"

exec bash "$ROOT/examples/finetuning/finetune.sh" "$DATA" "$CHECKPOINT" "$SAVE_DIR" "${OPTIONS[@]:1}" "$@"
