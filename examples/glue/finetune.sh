#!/usr/bin/env bash
# Fine-tune an encoder on a folder of `maelm prepare glue` or `maelm prepare sentences`.
#     [LR=X] [EPOCHS=N] [BATCH=N] [METRIC=NAME] bash finetune.sh TASK CHECKPOINT SAVE_DIR [OPTION OF FAIRSEQ-TRAIN ...]
# The paper's search (Table 4): LR 2e-5 3e-5 4e-5 5e-5, BATCH 16 32, EPOCHS 2 3 5 10, WARM_UP 6 10.
# A narrower encoder than 768 needs a higher LR: `maelm finetune` multiplies by the square of 768 / width.
# MNLI also needs: --valid-subset valid,valid1. On a CPU append: --cpu, and omit --fp16 below.
set -euo pipefail
TASK=${1:?the task folder} CHECKPOINT=${2:?the checkpoint file} SAVE_DIR=${3:?the folder for checkpoints}
LR=${LR:-3e-5} EPOCHS=${EPOCHS:-3} BATCH=${BATCH:-32} WARM_UP=${WARM_UP:-6}  # percent of the updates
METRIC=${METRIC:-accuracy}  # mcc for CoLA, spearman for STS-B

COUNT='import json, sys; print(json.load(open(sys.argv[1]))["splits"]["train"]["examples"])'
EXAMPLES=$(python -c "$COUNT" "$TASK/manifest.json")
UPDATES=$((EPOCHS * ((EXAMPLES + BATCH - 1) / BATCH)))

# The sizes are those of the checkpoint.
MODEL=(--arch maelm --finetune-from-model "$CHECKPOINT" --dropout 0.1 --attention-dropout 0.1)
BATCHES=(--batch-size "$BATCH" --tokens-per-sample 512 --required-batch-size-multiple 1 --num-workers 2
         --distributed-world-size 1)
OPTIMIZER=(--optimizer fused_adamw --adam-betas '(0.9, 0.98)' --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 0)
SCHEDULE=(--lr-scheduler polynomial_decay --lr "$LR" --warmup-updates $(((UPDATES * WARM_UP + 50) / 100))
          --total-num-update "$UPDATES" --max-update "$UPDATES" --max-epoch "$EPOCHS")
PRECISION=(--fp16 --fp16-init-scale 4 --fp16-scale-window 128)
BEST=(--best-checkpoint-metric "$METRIC" --maximize-best-checkpoint-metric --no-epoch-checkpoints)

fairseq-train "$TASK" --user-dir "$(maelm user-dir)" --task maelm_sentences --criterion maelm_sentences \
    --save-dir "$SAVE_DIR" --seed 1 "${MODEL[@]}" "${BATCHES[@]}" "${OPTIMIZER[@]}" "${SCHEDULE[@]}" \
    "${PRECISION[@]}" "${BEST[@]}" --log-format json --log-interval 100 "${@:4}"
