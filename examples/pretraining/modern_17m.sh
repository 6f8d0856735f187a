#!/usr/bin/env bash
# A small modern encoder for a computer without a GPU: 7 layers of width 256;
# every second layer also decodes. The settings are ours, not the paper's.
#     [PRECISION=bf16] bash modern_17m.sh DATA SAVE_DIR [OPTION OF FAIRSEQ-TRAIN ...]
# DATA: 50 MB of text and more, `maelm prepare corpus TEXT --vocabulary-size 8192 --output DATA`
# Cost: 10 million tokens, 0.38 petaFLOPs; about 40 minutes on one core with AMX in bf16 (measured with another decoder).
set -euo pipefail
DATA=${1:?the data folder} SAVE_DIR=${2:?the folder for checkpoints}
# PRECISION=bf16 is faster on processors with avx512_bf16 or amx_bf16 (`lscpu`).

MODEL=(--arch maelm_modern_17m --max-positions 128 --dropout 0 --attention-dropout 0 --initial-output-bias frequencies
       --init-std 0.035 --embedding-init-std 0.056)
# The masking rate falls during the training. For MLM append: --masked-input kept --decoder-layers 0
MASKS=(--masked-input dropped --mask-prob 0.3 --mask-prob-end 0.15 --leave-unmasked-prob 0 --random-token-prob 0
       --protect-special-tokens)
# Until 60 % of the updates, sequences have half the length.
BATCH=(--tokens-per-sample 128 --half-length-until 0.6 --sample-break-mode none --max-tokens 2048 --update-freq 1
       --cpu --distributed-world-size 1 --num-workers 0 --precision "${PRECISION:-fp32}")
# Muon for the matrices at twice the rate, AdamW for everything else.
OPTIMIZER=(--optimizer muon --muon-lr-ratio 2 --adam-betas '(0.9, 0.95)' --adam-eps 1e-6
           --weight-decay 0.01 --clip-norm 0)
# The rate rises for 2 % of the updates, stays, and falls linearly for the last 40 %.
SCHEDULE=(--lr-scheduler tri_stage_linear --phase-ratio '[0.02, 0.58, 0.4]' --init-lr-scale 0.01 --final-lr-scale 0.01
          --lr 3e-3 --max-update 5000)
CHECKPOINTS=(--save-interval-updates 500 --keep-interval-updates 2 --keep-interval-updates-pattern 2500
             --no-epoch-checkpoints)
LOG=(--log-format json --log-interval 100)

fairseq-train "$DATA" --user-dir "$(maelm user-dir)" --task maelm --criterion maelm --save-dir "$SAVE_DIR" --seed 1 \
    "${MODEL[@]}" "${MASKS[@]}" "${BATCH[@]}" "${OPTIMIZER[@]}" "${SCHEDULE[@]}" \
    "${CHECKPOINTS[@]}" "${LOG[@]}" "${@:3}"
