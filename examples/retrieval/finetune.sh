#!/usr/bin/env bash
# Fine-tune a pretrained checkpoint to find documents: one encoder embeds queries and documents, and every query must
# tell its document from those of the other queries.
#
#     bash examples/retrieval/finetune.sh TASK CHECKPOINT SAVE_DIR [FAIRSEQ OPTIONS]
#
# TASK        the folder of `maelm prepare-retrieval`
# CHECKPOINT  of pretraining; its decoder is dropped, its sizes are taken over
# SAVE_DIR    for the new checkpoints; the same command resumes from checkpoint_last.pt there
#
# Environment variables:
#     LEARNING_RATE        5e-5    2e-5 to 1e-4; small encoders take 5e-4
#     EPOCHS               10
#     BATCH_SIZE           32      queries of an update, over all GPUs: each has the others' documents as negatives
#     WARM_UP_PROPORTION   0.1
#     MAX_TOKENS           256     longer queries and documents are cut; never more than the encoder has positions
#     POOLING              mean    or first
#     SIMILARITY           cosine  or dot
#     TEMPERATURE          0.05    0.01 to 0.1 for cosine, 1 for dot
#     HARD_NEGATIVES       0       drawn for each query in each epoch, if the folder was prepared with some
#     VALIDATE_INTERVAL    1       epochs between two searches through the whole corpus
#     SEED                 1
#     GPUS                 1, or 0 on a machine without one
#     PRECISION            fp16, bf16 or fp32 (default: fp16 on GPUs, fp32 without)
#     DRY_RUN=1            write the command instead of running it
set -euo pipefail

FOLDER=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${LEARNING_RATE:=5e-5}" "${EPOCHS:=10}" "${BATCH_SIZE:=32}" "${WARM_UP_PROPORTION:=0.1}"
: "${MAX_TOKENS:=256}" "${POOLING:=mean}" "${SIMILARITY:=cosine}" "${TEMPERATURE:=0.05}" "${HARD_NEGATIVES:=0}"
: "${VALIDATE_INTERVAL:=1}"
# shellcheck source=examples/finetuning/common.sh
source "$FOLDER/../finetuning/common.sh" "$@"

read_options "$FOLDER/retrieval_options.py" --max-tokens "$MAX_TOKENS"
fine_tune --task maelm_retrieval --criterion maelm_retrieval \
    --pooling "$POOLING" --similarity "$SIMILARITY" --temperature "$TEMPERATURE" --hard-negatives "$HARD_NEGATIVES" \
    --batch-size-valid 64 --best-checkpoint-metric ndcg10 --maximize-best-checkpoint-metric \
    --validate-interval "$VALIDATE_INTERVAL" --save-interval "$VALIDATE_INTERVAL" --log-interval 10
