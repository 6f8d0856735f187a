#!/usr/bin/env bash
# Fine-tune a pretrained checkpoint to label words: parts of speech, named entities, any label of every word.
#
#     bash examples/tagging/finetune.sh TASK CHECKPOINT SAVE_DIR [FAIRSEQ OPTIONS]
#
# TASK        the folder of `maelm prepare-tagging`
# CHECKPOINT  of pretraining; its decoder is dropped, its sizes are taken over
# SAVE_DIR    for the new checkpoints; the same command resumes from checkpoint_last.pt there
#
# Environment variables:
#     LEARNING_RATE        5e-5    small encoders need more: 1e-3 for 4 layers of 128
#     EPOCHS               3
#     BATCH_SIZE           32      over all GPUs
#     WARM_UP_PROPORTION   0.06
#     SEED                 1
#     GPUS                 1, or 0 on a machine without one
#     PRECISION            fp16, bf16 or fp32 (default: fp16 on GPUs, fp32 without)
#     DRY_RUN=1            write the command instead of running it
set -euo pipefail

FOLDER=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${LEARNING_RATE:=5e-5}" "${EPOCHS:=3}" "${BATCH_SIZE:=32}" "${WARM_UP_PROPORTION:=0.06}"
# shellcheck source=examples/finetuning/common.sh
source "$FOLDER/../finetuning/common.sh" "$@"

read_options "$FOLDER/tagging_options.py"
# Ranks send one another the predictions of a validation batch, 2 bytes a word.
fine_tune --task maelm_tagging --criterion maelm_tagging --maximize-best-checkpoint-metric \
    --all-gather-list-size 131072 --log-interval 100
