#!/usr/bin/env bash
# MAE-LM base++: the base model on ten times the text (Meng et al., 2024, Table 3).
#     [GPUS=N] [SEQUENCES=N] bash base_plus_plus.sh DATA SAVE_DIR [OPTION OF FAIRSEQ-TRAIN ...]
# DATA: about 160 GB of English text, `maelm prepare corpus TEXT --preset cased --shards 10 --output DATA`
# Cost: 2.1 trillion tokens, 1,412 exaFLOPs; 55 days on one H100, estimated at 30 % of its peak, not measured.
# The same command resumes. GPUS x SEQUENCES must divide the batch of 2,048 sequences.
set -euo pipefail
DATA=${1:?the data folder} SAVE_DIR=${2:?the folder for checkpoints}
GPUS=${GPUS:-64}            # GPUs of all machines together
SEQUENCES=${SEQUENCES:-32}  # sequences of 512 tokens on each GPU in a step
((2048 % (GPUS * SEQUENCES) == 0)) || { echo "GPUS x SEQUENCES is $((GPUS * SEQUENCES)): it must divide 2048" >&2; exit 2; }

# 64 relative buckets up to distance 128
MODEL=(--arch maelm_base_plus_plus --max-positions 512 --dropout 0.1 --attention-dropout 0.1)
# Masked tokens never enter the encoder. For the MLM baseline append: --masked-input kept --decoder-layers 0
MASKS=(--masked-input dropped --mask-prob 0.15 --leave-unmasked-prob 0 --random-token-prob 0)
BATCH=(--tokens-per-sample 512 --sample-break-mode complete_doc --max-tokens $((512 * SEQUENCES))
       --update-freq $((2048 / (GPUS * SEQUENCES))) --distributed-world-size "$GPUS" --num-workers 2)
OPTIMIZER=(--optimizer fused_adamw --adam-betas '(0.9, 0.98)' --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 2.0)
SCHEDULE=(--lr-scheduler polynomial_decay --lr 2e-4 --warmup-updates 10000
          --total-num-update 2000000 --max-update 2000000)
PRECISION=(--fp16 --fp16-init-scale 4 --fp16-scale-window 256)  # on an A100 or newer: --precision bf16
CHECKPOINTS=(--save-interval-updates 2500 --keep-interval-updates 2 --keep-interval-updates-pattern 100000
             --no-epoch-checkpoints)
LOG=(--log-format json --log-interval 100)  # also --tensorboard-logdir or --wandb-project

fairseq-train "$DATA" --user-dir "$(maelm user-dir)" --task maelm --criterion maelm --save-dir "$SAVE_DIR" --seed 1 \
    "${MODEL[@]}" "${MASKS[@]}" "${BATCH[@]}" "${OPTIMIZER[@]}" "${SCHEDULE[@]}" "${PRECISION[@]}" \
    "${CHECKPOINTS[@]}" "${LOG[@]}" "${@:3}"
