# shellcheck shell=bash
# What all recipes that fine-tune a checkpoint share; they set the defaults of LEARNING_RATE, EPOCHS, BATCH_SIZE and
# WARM_UP_PROPORTION and then source this file with their arguments: TASK CHECKPOINT SAVE_DIR [FAIRSEQ OPTIONS].

# shellcheck source=examples/shell.sh
source "$(dirname "${BASH_SOURCE[0]}")/../shell.sh"

(($# >= 3)) || fail "usage: finetune.sh TASK CHECKPOINT SAVE_DIR [FAIRSEQ OPTIONS]"
TASK=$1 CHECKPOINT=$2 SAVE_DIR=$3
USERS_OPTIONS=("${@:4}")

if command -v nvidia-smi >/dev/null && nvidia-smi --list-gpus >/dev/null 2>&1; then : "${GPUS:=1}"; fi
: "${SEED:=1}" "${GPUS:=0}" "${PRECISION:=$( ((GPUS > 0)) && echo fp16 || echo fp32)}" "${DRY_RUN:=}"
((GPUS == 0 || BATCH_SIZE % GPUS == 0)) || fail "BATCH_SIZE=$BATCH_SIZE must be a multiple of GPUS=$GPUS"

SPEED_OPTIONS=()
if ((GPUS > 0)); then SPEED_OPTIONS+=(--distributed-world-size "$GPUS"); else SPEED_OPTIONS+=(--cpu); fi
case $PRECISION in
    fp16) SPEED_OPTIONS+=(--fp16 --fp16-init-scale 4 --fp16-scale-window 128) ;;
    bf16) SPEED_OPTIONS+=(--precision bf16) ;;
    fp32) ;;
    *) fail "PRECISION must be bf16, fp16 or fp32, not '$PRECISION'" ;;
esac

need fairseq-train

# read_options SCRIPT ARGUMENT...: writes into TASK_OPTIONS what the task and the checkpoint decide.
read_options() {
    WORDS=$(python "$1" "$TASK" "$CHECKPOINT" --epochs "$EPOCHS" --batch-size "$BATCH_SIZE" \
        --warm-up-proportion "$WARM_UP_PROPORTION" "${@:2}")
    mapfile -t TASK_OPTIONS <<<"$WORDS"
}

# fine_tune OPTION...: runs fairseq-train with the task's own options, or writes the command under DRY_RUN.
fine_tune() {
    local command=(
        fairseq-train "$TASK" --user-dir "$ROOT/fairseq_maelm" --save-dir "$SAVE_DIR"
        --finetune-from-model "$CHECKPOINT" "${TASK_OPTIONS[@]}"
        --batch-size $((GPUS > 0 ? BATCH_SIZE / GPUS : BATCH_SIZE)) --required-batch-size-multiple 1
        --optimizer fused_adamw --adam-betas "(0.9, 0.98)" --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 0
        --lr-scheduler polynomial_decay --lr "$LEARNING_RATE"
        --dropout 0.1 --attention-dropout 0.1 --seed "$SEED"
        --log-format json --no-epoch-checkpoints
        "$@" "${SPEED_OPTIONS[@]}" ${USERS_OPTIONS[@]+"${USERS_OPTIONS[@]}"}
    )
    if [[ -n $DRY_RUN ]]; then
        printf '%q ' "${command[@]}"
        printf '\n'
        exit 0
    fi
    exec "${command[@]}"
}
