#!/usr/bin/env bash
# Adapt an encoder to a domain without <mask> in its input; `maelm pretrain DATA --checkpoint` does the same.
#     [GPUS=N] [SEQUENCES=N] [LR=X] [DROPOUT=X] bash adapt.sh DATA CHECKPOINT SAVE_DIR UPDATES [OPTION ...]
# Before:  maelm import answerdotai/ModernBERT-base --download --output base
#          maelm prepare corpus TEXT --vocabulary base --output DATA
# After:   maelm export --checkpoint SAVE_DIR --output my-encoder
# UPDATES: `maelm pretrain` takes three passes over the data; 10 million tokens are 610 batches of 16,384.
set -euo pipefail
DATA=${1:?the data folder} CHECKPOINT=${2:?the checkpoint file} SAVE_DIR=${3:?the folder for checkpoints}
UPDATES=${4:?the number of updates}
GPUS=${GPUS:-1}            # GPUS x SEQUENCES must divide the batch of 32 sequences
SEQUENCES=${SEQUENCES:-$((32 / GPUS))}  # sequences of 512 tokens on each GPU in a step
((32 % (GPUS * SEQUENCES) == 0)) || { echo "GPUS x SEQUENCES is $((GPUS * SEQUENCES)): it must divide 32" >&2; exit 2; }
LR=${LR:-1e-4}
DROPOUT=${DROPOUT:-0}      # 0 for ModernBERT and Ettin, 0.1 for encoders like BERT and RoBERTa

# The encoder and its sizes come from the checkpoint. Its own layers predict the masked tokens: masks read all tokens, but
# no other token reads a mask.
MODEL=(--arch maelm --finetune-from-model "$CHECKPOINT" --decoder-attention shared
       --dropout "$DROPOUT" --attention-dropout "$DROPOUT")
MASKS=(--masked-input dropped --mask-prob 0.3 --leave-unmasked-prob 0 --random-token-prob 0 --protect-special-tokens)
# Without the multiple of 1, fairseq would leave room in batches of shorter sequences.
BATCH=(--tokens-per-sample 512 --sample-break-mode complete_doc --max-tokens $((512 * SEQUENCES))
       --required-batch-size-multiple 1
       --update-freq $((32 / (GPUS * SEQUENCES))) --distributed-world-size "$GPUS" --num-workers 2 --precision bf16)
OPTIMIZER=(--optimizer fused_adamw --adam-betas '(0.9, 0.98)' --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 1.0)
SCHEDULE=(--lr-scheduler polynomial_decay --lr "$LR" --warmup-updates 50
          --total-num-update "$UPDATES" --max-update "$UPDATES")
# Validate 20 times, at most every 10 updates; stop when the loss of held-out text has not fallen in five validations.
EVERY=$((UPDATES > 200 ? UPDATES / 20 : 10))
STOP=(--patience 5 --validate-interval-updates "$EVERY" --save-interval-updates "$EVERY")

fairseq-train "$DATA" --user-dir "$(maelm user-dir)" --task maelm --criterion maelm --save-dir "$SAVE_DIR" --seed 1 \
    "${MODEL[@]}" "${MASKS[@]}" "${BATCH[@]}" "${OPTIMIZER[@]}" "${SCHEDULE[@]}" "${STOP[@]}" \
    --keep-interval-updates 2 --no-epoch-checkpoints --log-format json --log-interval 100 "${@:5}"
