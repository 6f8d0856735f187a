#!/usr/bin/env bash
# maelm_small and fairseq's stock RoBERTa cut to the same encoder: same blocks of text, same number of updates.
#
#   bash examples/pretraining/against_roberta/run.sh DATA OUTPUT [UPDATES]
#
# DATA     a folder of `maelm prepare corpus`
# OUTPUT   checkpoints, logs and the figure go there; run again to resume
# UPDATES  of 2,048 tokens each (default 1500)
#
# Cost: about 50 minutes of one core for MAE-LM and 40 for RoBERTa at 1500 updates; both run at the same time, one
# thread each. Three stages: sequences of 8 tokens, sequences of 32, and the same with a falling learning rate. A run as
# short as this would otherwise end before either model has found out that neighboring tokens tell about a masked one.
# Blocks are cut with --sample-break-mode none, because stock fairseq leaves out lines longer than a sequence.

# shellcheck source=examples/shell.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../shell.sh"
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

(($# >= 2)) || fail "usage: run.sh DATA OUTPUT [UPDATES]"
DATA=$1 OUTPUT=$2 STAGE=$((${3:-1500} / 3))
PLUGIN=$ROOT/fairseq_maelm
need fairseq-train
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
mkdir -p "$OUTPUT"

common=(
    --seed 1 --optimizer adam --adam-betas '(0.9,0.98)' --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 2.0
    --lr 4e-4 --warmup-updates 40 --max-update "$STAGE" --max-positions 128
    --mask-prob 0.4 --leave-unmasked-prob 0 --random-token-prob 0
    --max-tokens 2048 --sample-break-mode none --max-tokens-valid 4096
    --validate-interval-updates 100 --save-interval-updates 100 --no-epoch-checkpoints
    --log-format json --log-interval 20 --num-workers 0 --cpu
)
# Four layers of the decoder, as maelm_small had when README.md's numbers were measured.
maelm=(
    --user-dir "$PLUGIN" --task maelm --criterion maelm --arch maelm_small --decoder-layers 4
    --initial-output-bias frequencies
)
# The plugin has no part in RoBERTa; it only lets torch 2.6 and later read fairseq's checkpoints.
roberta=(
    --user-dir "$PLUGIN" --task masked_lm --criterion masked_lm --arch roberta_base
    --encoder-layers 6 --encoder-embed-dim 384 --encoder-ffn-embed-dim 1536 --encoder-attention-heads 6
)

# stages NAME ARGUMENT...: each stage starts from the weights of the one before
stages() {
    local name=$1 before=() schedule stage folder
    local tokens=([1]=8 [2]=32 [3]=32)
    shift
    for stage in 1 2 3; do
        schedule=(--lr-scheduler fixed)
        [[ $stage == 3 ]] && schedule=(--lr-scheduler polynomial_decay --total-num-update "$STAGE")
        folder=$OUTPUT/${name}_$stage
        if [[ ! -e $folder.finished ]]; then
            fairseq-train "$DATA" "${common[@]}" "${schedule[@]}" "$@" "${before[@]}" \
                --tokens-per-sample "${tokens[stage]}" \
                --save-dir "$folder" > "$folder.out" 2>&1
            touch "$folder.finished"
        fi
        before=(--finetune-from-model "$folder/checkpoint_last.pt")
    done
}

# A process group for each model, so that stopping this script stops both.
set -m
stages maelm "${maelm[@]}" &
maelm_group=$!
stages roberta "${roberta[@]}" &
roberta_group=$!
set +m
trap 'kill -- -$maelm_group -$roberta_group 2> /dev/null; exit 1' INT TERM
echo "training; follow with: tail -f $OUTPUT/*.out"
wait $maelm_group && wait $roberta_group

for stage in 1 2 3; do
    python "$HERE/score_roberta.py" "$DATA" "$OUTPUT/roberta_$stage"/checkpoint_[0-9]*.pt > "$OUTPUT/roberta_$stage.json"
done
python "$HERE/plot.py" "$OUTPUT"
