#!/usr/bin/env bash
# An encoder of ModernBERT's base size: 22 layers of 768, rotary positions, local attention in two of three layers;
# every second layer also decodes. The settings are ours, not the paper's.
#     [GPUS=N] [SEQUENCES=N] bash modern_150m.sh DATA SAVE_DIR [OPTION OF FAIRSEQ-TRAIN ...]
# DATA: 20 GB of text and more, `maelm prepare corpus TEXT --preset cased --output DATA`
# Cost: 52 billion tokens, 41 exaFLOPs; 1.6 days on one H100, estimated at 30 % of its peak, not measured.
set -euo pipefail
DATA=${1:?the data folder} SAVE_DIR=${2:?the folder for checkpoints}
GPUS=${GPUS:-8}            # GPUS x SEQUENCES must divide the batch of 1,024 sequences
SEQUENCES=${SEQUENCES:-32}  # sequences of 1,024 tokens on each GPU in a step
((1024 % (GPUS * SEQUENCES) == 0)) || { echo "GPUS x SEQUENCES is $((GPUS * SEQUENCES)): it must divide 1024" >&2; exit 2; }

MODEL=(--arch maelm_modern_150m --max-positions 1024 --local-attention 128 --global-every 3
       --dropout 0 --attention-dropout 0 --initial-output-bias frequencies)
# The masking rate falls during the training. For MLM append: --masked-input kept --decoder-layers 0
MASKS=(--masked-input dropped --mask-prob 0.3 --mask-prob-end 0.15 --leave-unmasked-prob 0 --random-token-prob 0
       --protect-special-tokens)
BATCH=(--tokens-per-sample 1024 --sample-break-mode complete_doc --max-tokens $((1024 * SEQUENCES))
       --update-freq $((1024 / (GPUS * SEQUENCES))) --distributed-world-size "$GPUS" --num-workers 2 --precision bf16)
# Muon for the matrices at twice the rate, AdamW for everything else.
OPTIMIZER=(--optimizer muon --muon-lr-ratio 2 --adam-betas '(0.9, 0.95)' --adam-eps 1e-6
           --weight-decay 0.01 --clip-norm 0)
# The rate rises for 2 % of the updates, stays, and falls linearly for the last 40 %.
SCHEDULE=(--lr-scheduler tri_stage_linear --phase-ratio '[0.02, 0.58, 0.4]' --init-lr-scale 0.01 --final-lr-scale 0.01
          --lr 8e-4 --max-update 50000)
CHECKPOINTS=(--save-interval-updates 2500 --keep-interval-updates 2 --keep-interval-updates-pattern 25000
             --no-epoch-checkpoints)
LOG=(--log-format json --log-interval 100)

fairseq-train "$DATA" --user-dir "$(maelm user-dir)" --task maelm --criterion maelm --save-dir "$SAVE_DIR" --seed 1 \
    "${MODEL[@]}" "${MASKS[@]}" "${BATCH[@]}" "${OPTIMIZER[@]}" "${SCHEDULE[@]}" \
    "${CHECKPOINTS[@]}" "${LOG[@]}" "${@:3}"
