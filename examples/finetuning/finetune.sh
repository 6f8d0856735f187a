#!/usr/bin/env bash
# Fine-tune a pretrained checkpoint on sentences or pairs of sentences: classification, or regression of one number.
# Nothing here is MAE-LM's own: it is fairseq's task and criterion sentence_prediction on our model.
#
#     bash examples/finetuning/finetune.sh TASK CHECKPOINT SAVE_DIR [FAIRSEQ OPTIONS]
#
# TASK        the folder of prepare_sentences.py (or any that sentence_prediction reads)
# CHECKPOINT  of pretraining; its decoder is dropped, its sizes are taken over
# SAVE_DIR    for the new checkpoints; the same command resumes from checkpoint_last.pt there
#
# Environment variables, with the ranges that the paper searches for small and for large GLUE tasks (Table 4):
#     LEARNING_RATE        3e-5    {2e-5 ... 5e-5} and {1e-5 ... 4e-5}; large++ {7e-6 ... 3e-5} and {5e-6 ... 2e-5}
#     EPOCHS               3       {2, 3, 5, 10} and {2, 3, 5}
#     BATCH_SIZE           32      {16, 32} and 32; over all GPUs and accumulated steps
#     WARM_UP_PROPORTION   0.06    {0.06, 0.1} and 0.06
#     SEED                 1       the paper reports medians of five
#     GPUS                 1, or 0 on a machine without one
#     PRECISION            fp16, bf16 or fp32 (default: fp16 on GPUs, fp32 without)
#     DRY_RUN=1            write the command instead of running it
set -euo pipefail

FOLDER=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${LEARNING_RATE:=3e-5}" "${EPOCHS:=3}" "${BATCH_SIZE:=32}" "${WARM_UP_PROPORTION:=0.06}"
# shellcheck source=examples/finetuning/common.sh
source "$FOLDER/common.sh" "$@"

read_options "$FOLDER/task_options.py"
# <s> a </s> for a sentence, <s> a </s> </s> b </s> for a pair.
fine_tune --task sentence_prediction --criterion sentence_prediction \
    --init-token 0 --separator-token 2 --shorten-method truncate --log-interval 100
