#!/usr/bin/env bash
# MAE-LM base: a 12-layer encoder, 768 wide, with a 4-layer decoder (paper, Table 3, column "base").
#
#     DATA=data SAVE_DIR=base GPUS=8 bash examples/pretraining/base.sh
#
# Data    about 16 GB of English text (Wikipedia and books in the paper), `maelm prepare --preset uncased`: 32,768 symbols
# Batch   2,048 sequences of 512 tokens = 1,048,576 tokens. With SEQUENCES_PER_GPU=32 (--max-tokens 16384):
#             GPUS           8   16   32   64
#             --update-freq  8    4    2    1
# Cost    0.652 GFLOP a token, 131 billion tokens: 85 exaFLOP. Estimated, not measured, at 30 % of the half-precision
#         peak: 3.3 days of one H100 or H200, 10.6 days of one A100. See README.md for how to know it after five minutes
# Disk    1.7 GB a checkpoint; the last two, the best and every 25,000th update are kept: about 15 GB
# Expect  15 bits at the first update (log2 of 32,768). The paper fine-tunes the result to 87.2/87.1 on MNLI and to a
#         GLUE average of 86.1, and METHOD=mlm ("RoBERTa (Ours)") to 85.9/85.8 and 85.2
#
# Options: common.sh.

ARCHITECTURE=maelm_base # 32 relative buckets up to distance 128
MAX_STEPS=125000
WARM_UP_STEPS=10000
PEAK_LEARNING_RATE=5e-4
CLIP_NORM=2.0
BATCH_SEQUENCES=2048
SEQUENCE_LENGTH=512

SAVE_STEPS=2500
KEEP_STEPS=25000
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
