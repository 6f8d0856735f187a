#!/usr/bin/env bash
# Fine-tune an encoder on a folder of `maelm prepare squad`, SQuAD 2.0 by default.
#     [LR=X] [EPOCHS=N] [BATCH=N] [METRIC=f1] bash finetune.sh TASK CHECKPOINT SAVE_DIR UPDATES [OPTION ...]
# UPDATES: EPOCHS times the windows of the questions over BATCH; about 8,300 an epoch of SQuAD 2.0 with 16 in a batch.
# The paper's search (Table 5): LR 2e-5 3e-5 4e-5 5e-5, BATCH 16 32, EPOCHS 2 3, warm-up 6 or 10 % of the updates.
# A narrower encoder than 768 needs a higher LR: `maelm finetune` multiplies by the square of 768 / width.
set -euo pipefail
TASK=${1:?the task folder} CHECKPOINT=${2:?the checkpoint file} SAVE_DIR=${3:?the folder for checkpoints}
UPDATES=${4:?the number of updates}
LR=${LR:-3e-5} EPOCHS=${EPOCHS:-2} BATCH=${BATCH:-16}
METRIC=${METRIC:-best_f1}  # f1 for SQuAD 1.1, which has an answer to every question

# The sizes are those of the checkpoint.
MODEL=(--arch maelm --finetune-from-model "$CHECKPOINT" --dropout 0.1 --attention-dropout 0.1)
# A context longer than 512 tokens is read in windows that begin every 128 tokens.
WINDOWS=(--max-length 512 --doc-stride 128 --max-question-length 64)
BATCHES=(--batch-size "$BATCH" --batch-size-valid 64 --required-batch-size-multiple 1 --num-workers 2
         --distributed-world-size 1)
OPTIMIZER=(--optimizer fused_adamw --adam-betas '(0.9, 0.98)' --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 0)
SCHEDULE=(--lr-scheduler polynomial_decay --lr "$LR" --warmup-updates $(((UPDATES + 5) / 10))
          --total-num-update "$UPDATES" --max-update "$UPDATES" --max-epoch "$EPOCHS")
PRECISION=(--fp16 --fp16-init-scale 4 --fp16-scale-window 128)
BEST=(--best-checkpoint-metric "$METRIC" --maximize-best-checkpoint-metric --no-epoch-checkpoints)

fairseq-train "$TASK" --user-dir "$(maelm user-dir)" --task maelm_squad --criterion maelm_squad \
    --save-dir "$SAVE_DIR" --seed 1 "${MODEL[@]}" "${WINDOWS[@]}" "${BATCHES[@]}" "${OPTIMIZER[@]}" "${SCHEDULE[@]}" \
    "${PRECISION[@]}" "${BEST[@]}" --log-format json --log-interval 100 "${@:5}"
