#!/usr/bin/env bash
# Fine-tune a pretrained checkpoint on SQuAD 1.1 or 2.0: the answer to a question is a span of a context, or there is
# none.
#
#     bash examples/squad/finetune.sh TASK CHECKPOINT SAVE_DIR [FAIRSEQ OPTIONS]
#
# TASK        the folder of `maelm prepare-squad`
# CHECKPOINT  of pretraining; its decoder is dropped, its sizes are taken over
# SAVE_DIR    for the new checkpoints; the same command resumes from checkpoint_last.pt there
#
# Environment variables, with the ranges that the paper searches (Table 5):
#     LEARNING_RATE        3e-5    {2e-5, 3e-5, 4e-5, 5e-5}; large++ {7e-6, 1e-5, 2e-5, 3e-5}
#     EPOCHS               2       {2, 3}
#     BATCH_SIZE           16      {16, 32}; over all GPUs
#     WARM_UP_PROPORTION   0.1     {0.06, 0.1}
#     MAX_LENGTH           512     512; 384 is the other usual one
#     DOC_STRIDE           128
#     MAX_QUESTION_LENGTH  64
#     SEED                 1       the paper reports medians of five
#     GPUS                 1, or 0 on a machine without one
#     PRECISION            fp16, bf16 or fp32 (default: fp16 on GPUs, fp32 without)
#     DRY_RUN=1            write the command instead of running it
set -euo pipefail

FOLDER=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${LEARNING_RATE:=3e-5}" "${EPOCHS:=2}" "${BATCH_SIZE:=16}" "${WARM_UP_PROPORTION:=0.1}"
: "${MAX_LENGTH:=512}" "${DOC_STRIDE:=128}" "${MAX_QUESTION_LENGTH:=64}"
# shellcheck source=examples/finetuning/common.sh
source "$FOLDER/../finetuning/common.sh" "$@"

WINDOWS=(--max-length "$MAX_LENGTH" --doc-stride "$DOC_STRIDE" --max-question-length "$MAX_QUESTION_LENGTH")
read_options "$FOLDER/squad_options.py" "${WINDOWS[@]}"
fine_tune --task maelm_squad --criterion maelm_squad "${WINDOWS[@]}" --batch-size-valid 64 --log-interval 100
