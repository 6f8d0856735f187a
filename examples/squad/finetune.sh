#!/usr/bin/env bash
# Fine-tune a pretrained checkpoint on SQuAD 1.1 or 2.0: the answer to a question is a span of a context, or there is
# none.
#
#     bash examples/squad/finetune.sh TASK CHECKPOINT SAVE_DIR [FAIRSEQ OPTIONS]
#
# TASK        the folder of `maelm prepare-squad`
# CHECKPOINT  of pretraining; its decoder is dropped, its sizes are taken over
# SAVE_DIR    for the new checkpoints; the same command resumes from checkpoint_last.pt there
#
# Environment variables, with the ranges that the paper searches (Table 5):
#     LEARNING_RATE        3e-5    {2e-5, 3e-5, 4e-5, 5e-5}; large++ {7e-6, 1e-5, 2e-5, 3e-5}
#     EPOCHS               2       {2, 3}
#     BATCH_SIZE           16      {16, 32}; over all GPUs
#     WARM_UP_PROPORTION   0.1     {0.06, 0.1}
#     MAX_LENGTH           512     512; 384 is the other usual one
#     DOC_STRIDE           128
#     MAX_QUESTION_LENGTH  64
#     SEED                 1       the paper reports medians of five
#     GPUS                 1, or 0 on a machine without one
#     PRECISION            fp16, bf16 or fp32 (default: fp16 on GPUs, fp32 without)
#     DRY_RUN=1            write the command instead of running it
set -euo pipefail

FOLDER=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$FOLDER/../.." && pwd)

fail() {
    printf '%s: %s\n' "$(basename "$0")" "$1" >&2
    exit 2
}

(($# >= 3)) || fail "usage: finetune.sh TASK CHECKPOINT SAVE_DIR [FAIRSEQ OPTIONS]"
TASK=$1 CHECKPOINT=$2 SAVE_DIR=$3
shift 3

if command -v nvidia-smi >/dev/null && nvidia-smi --list-gpus >/dev/null 2>&1; then : "${GPUS:=1}"; fi
: "${LEARNING_RATE:=3e-5}" "${EPOCHS:=2}" "${BATCH_SIZE:=16}" "${WARM_UP_PROPORTION:=0.1}" "${SEED:=1}" "${GPUS:=0}"
: "${MAX_LENGTH:=512}" "${DOC_STRIDE:=128}" "${MAX_QUESTION_LENGTH:=64}"
: "${PRECISION:=$( ((GPUS > 0)) && echo fp16 || echo fp32)}" "${DRY_RUN:=}"
((GPUS == 0 || BATCH_SIZE % GPUS == 0)) || fail "BATCH_SIZE=$BATCH_SIZE must be a multiple of GPUS=$GPUS"

SPEED_OPTIONS=()
if ((GPUS > 0)); then SPEED_OPTIONS+=(--distributed-world-size "$GPUS"); else SPEED_OPTIONS+=(--cpu); fi
case $PRECISION in
    fp16) SPEED_OPTIONS+=(--fp16 --fp16-init-scale 4 --fp16-scale-window 128) ;;
    bf16) SPEED_OPTIONS+=(--precision bf16) ;;
    fp32) ;;
    *) fail "PRECISION must be bf16, fp16 or fp32, not '$PRECISION'" ;;
esac

if ! command -v fairseq-train >/dev/null && [[ -x $ROOT/.venv/bin/fairseq-train ]]; then
    PATH=$ROOT/.venv/bin:$PATH
fi
command -v fairseq-train >/dev/null ||
    fail "fairseq-train is not installed: run 'bash scripts/setup.sh', or activate the environment that has it"

WINDOWS=(--max-length "$MAX_LENGTH" --doc-stride "$DOC_STRIDE" --max-question-length "$MAX_QUESTION_LENGTH")
WORDS=$(python "$FOLDER/squad_options.py" "$TASK" "$CHECKPOINT" --epochs "$EPOCHS" --batch-size "$BATCH_SIZE" \
    --warm-up-proportion "$WARM_UP_PROPORTION" "${WINDOWS[@]}")
mapfile -t TASK_OPTIONS <<<"$WORDS"

COMMAND=(
    fairseq-train "$TASK" --user-dir "$ROOT/fairseq_maelm" --save-dir "$SAVE_DIR"
    --task maelm_squad --criterion maelm_squad --finetune-from-model "$CHECKPOINT"
    "${TASK_OPTIONS[@]}" "${WINDOWS[@]}"
    --batch-size $((GPUS > 0 ? BATCH_SIZE / GPUS : BATCH_SIZE)) --batch-size-valid 64 --required-batch-size-multiple 1
    --optimizer fused_adamw --adam-betas "(0.9, 0.98)" --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 0
    --lr-scheduler polynomial_decay --lr "$LEARNING_RATE"
    --dropout 0.1 --attention-dropout 0.1 --seed "$SEED"
    --log-format json --log-interval 100 --no-epoch-checkpoints
    "${SPEED_OPTIONS[@]}" "$@"
)

if [[ -n $DRY_RUN ]]; then
    printf '%q ' "${COMMAND[@]}"
    printf '\n'
    exit 0
fi
exec "${COMMAND[@]}"
