#!/usr/bin/env bash
# MAE-LM small on one GPU: a 6-layer encoder, 384 wide, with a 2-layer decoder. The size and the settings are ours, not
# the paper's: what fits between a lecture and the next.
#
#     DATA=data SAVE_DIR=small bash examples/pretraining/small.sh
#
# Data    1 GB of text and more, `maelm prepare --preset uncased`: 32,768 symbols
# Batch   256 sequences of 512 tokens = 131,072 tokens. With SEQUENCES_PER_GPU=32 (--max-tokens 16384):
#             GPUS           1    2    4    8
#             --update-freq  8    4    2    1
# Cost    0.092 GFLOP a token, 3.9 billion tokens: 0.4 exaFLOP. Estimated, not measured: small matrices use a GPU badly,
#         at 15 % of the half-precision peak it is 40 minutes of an H100, two hours of an A100
# Disk    0.4 GB a checkpoint; the last two, the best and every 10,000th update are kept
# Expect  15 bits at the first update (log2 of 32,768)
#
# Options: common.sh.

ARCHITECTURE=maelm_small # 32 relative buckets up to distance 128
MAX_STEPS=30000
WARM_UP_STEPS=3000
PEAK_LEARNING_RATE=1e-3
CLIP_NORM=2.0
BATCH_SEQUENCES=256
SEQUENCE_LENGTH=512

SAVE_STEPS=1000
KEEP_STEPS=10000
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
