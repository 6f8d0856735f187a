#!/usr/bin/env bash
# maelm_small and fairseq's stock RoBERTa cut to the same encoder: same blocks of text, same number of updates.
#
#   bash examples/pretraining/against_roberta/run.sh DATA OUTPUT [UPDATES]
#
# DATA     a folder of `maelm prepare`
# OUTPUT   checkpoints, logs and the figure go there; run again to resume
# UPDATES  of 16 sequences of 128 tokens each (default 1600)
#
# Cost: about 60 minutes of one core for each model at 1600 updates; both run at the same time, one thread each.
# Blocks are cut with --sample-break-mode none, because stock fairseq leaves out lines longer than a sequence.
set -euo pipefail
DATA=$1 OUTPUT=$2 UPDATES=${3:-1600}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PLUGIN=$(cd "$HERE/../../../fairseq_maelm" && pwd)
VENV=${MAELM_VENV:-$(cd "$HERE/../../.." && pwd)/.venv}
[[ -x $VENV/bin/fairseq-train ]] && export PATH=$VENV/bin:$PATH
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
mkdir -p "$OUTPUT"

common=(
    --seed 1 --optimizer adam --adam-betas '(0.9,0.98)' --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 2.0
    --lr-scheduler polynomial_decay --lr 1e-3 --warmup-updates $((UPDATES / 10))
    --total-num-update "$UPDATES" --max-update "$UPDATES"
    --max-tokens 2048 --tokens-per-sample 128 --sample-break-mode none --max-tokens-valid 4096
    --validate-interval-updates 200 --save-interval-updates 200 --no-epoch-checkpoints
    --log-format json --log-interval 20 --num-workers 0 --cpu
)
fairseq-train "$DATA" --user-dir "$PLUGIN" --task maelm --criterion maelm --arch maelm_small --max-positions 128 \
    "${common[@]}" --save-dir "$OUTPUT/maelm" --log-file "$OUTPUT/maelm.log" > "$OUTPUT/maelm.out" 2>&1 &
maelm=$!
fairseq-train "$DATA" --task masked_lm --criterion masked_lm --arch roberta_base \
    --encoder-layers 6 --encoder-embed-dim 384 --encoder-ffn-embed-dim 1536 --encoder-attention-heads 6 \
    --mask-prob 0.15 --leave-unmasked-prob 0 --random-token-prob 0 \
    "${common[@]}" --save-dir "$OUTPUT/roberta" --log-file "$OUTPUT/roberta.log" > "$OUTPUT/roberta.out" 2>&1 &
roberta=$!
trap 'kill $maelm $roberta 2> /dev/null' INT TERM
echo "training; follow with: tail -f $OUTPUT/maelm.log $OUTPUT/roberta.log"
wait $maelm && wait $roberta

python "$HERE/score_roberta.py" "$DATA" "$OUTPUT"/roberta/checkpoint_1_*.pt > "$OUTPUT/roberta_scores.json"
python "$HERE/plot.py" "$OUTPUT/maelm.log" "$OUTPUT/roberta_scores.json" "$OUTPUT/curves.png"
