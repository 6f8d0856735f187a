#!/usr/bin/env bash
# The small encoders of the table in examples/README.md: MAE-LM and MLM, pretrained on equal data in a few hours of two
# CPU cores, one core each.
#
#     bash examples/small_encoders/pretrain.sh OUTPUT TEXT [TEXT ...]
#
# OUTPUT   for data/ (the vocabulary and the binarized text), mae-lm/ and mlm/, with a folder for each stage; the same
#          command goes on after an interruption
# TEXT     a paragraph a line, blank lines between documents; the table's is 189 MB of English Wikipedia
#
# Four stages, from short sequences to long ones: from long ones alone a small model does not find out in hours that
# neighbors tell about a masked token. 4 layers of 192, 40 % of the tokens masked, learning rate 1e-3, falling in the last
# stage.
#
# Environment variables:
#     SHARE     1      a fraction of the updates, to try it out: SHARE=0.01
#     PIECES    4000   of the vocabulary
#     THREADS   1      of each of the two programs

# shellcheck source=examples/shell.sh
source "$(dirname "${BASH_SOURCE[0]}")/../shell.sh"

(($# >= 2)) || fail "usage: pretrain.sh OUTPUT TEXT [TEXT ...]"
OUTPUT=$1
shift
: "${SHARE:=1}" "${PIECES:=4000}" "${THREADS:=1}"
export OMP_NUM_THREADS=$THREADS

need maelm

# What is prepared already is kept; the same texts are not read again.
if [[ ! -f $OUTPUT/data/manifest.json ]]; then
    maelm prepare corpus "$@" --output "$OUTPUT/data" --vocabulary-size "$PIECES" --valid-fraction 0.004
fi

# stage MODEL NUMBER TOKENS_PER_SAMPLE MAX_TOKENS UPDATES SCHEDULE
stage() {
    local folder=$OUTPUT/$1 updates start=() method schedule=(--lr-scheduler fixed)
    # fairseq-train would say the same, after it has read the data.
    [[ ! -f $folder/stage_$2.done ]] || return 0
    updates=$(awk -v n="$5" -v share="$SHARE" 'BEGIN { u = int(n * share); print (u < 2 ? 2 : u) }')
    case $1 in
        mae-lm) method=(--masked-input dropped --decoder-layers 1) ;;
        mlm) method=(--masked-input kept --decoder-layers 0) ;;
    esac
    (($2 == 1)) || start=(--finetune-from-model "$folder/stage_$(($2 - 1))/checkpoint_last.pt")
    [[ $6 == fixed ]] || schedule=(--lr-scheduler polynomial_decay --total-num-update "$updates")
    mkdir -p "$folder"
    fairseq-train "$OUTPUT/data" --user-dir "$ROOT/fairseq_maelm" --save-dir "$folder/stage_$2" \
        --task maelm --criterion maelm --arch maelm_tiny \
        --encoder-layers 4 --encoder-embed-dim 192 --encoder-ffn-embed-dim 768 --encoder-attention-heads 6 \
        --init-std 0.04 --embedding-init-std 0.065 --dropout 0 --attention-dropout 0 --max-positions 512 \
        --initial-output-bias frequencies --protect-special-tokens --mask-prob 0.4 \
        --sample-break-mode none --tokens-per-sample "$3" --max-tokens "$4" \
        --max-update "$updates" --lr 1e-3 --warmup-updates $((updates / 20)) --clip-norm 2.0 --seed 1 \
        --optimizer fused_adamw --adam-betas "(0.9, 0.98)" --adam-eps 1e-6 --weight-decay 0.01 \
        --no-epoch-checkpoints --save-interval 1000000000 --validate-interval 1000000000 \
        --validate-interval-updates 1000 --save-interval-updates 100 --keep-interval-updates 1 \
        --log-format json --log-interval 50 --cpu --distributed-world-size 1 --num-workers 0 \
        "${method[@]}" "${start[@]}" "${schedule[@]}" >>"$folder/stage_$2.log" 2>&1
    touch "$folder/stage_$2.done"
}

pretrain() {
    stage "$1" 1 8 2048 800 fixed
    stage "$1" 2 32 4096 400 fixed
    stage "$1" 3 64 4096 1500 fixed
    stage "$1" 4 128 8192 1700 falling
    printf '%s: %s/stage_4/checkpoint_last.pt\n' "$1" "$OUTPUT/$1"
}

RUNS=()
for model in mae-lm mlm; do
    pretrain "$model" &
    RUNS+=($!)
done
# The runs are background jobs, which a terminal's Ctrl-C does not reach.
trap 'pkill -TERM -P "$(IFS=,; echo "${RUNS[*]}")" || true' INT TERM
STATUS=0
for run in "${RUNS[@]}"; do wait "$run" || STATUS=1; done
((STATUS == 0)) || fail "a run failed: the logs in $OUTPUT say why"
