#!/usr/bin/env bash
# MAE-LM large++: a 24-layer encoder, 1,024 wide, with a 4-layer decoder (paper, Table 3, column "large++").
#
#     DATA=data SAVE_DIR=large_plus_plus GPUS=64 NODES=8 NODE_RANK=0 MASTER_ADDR=node0 bash examples/pretraining/large_plus_plus.sh
#
# Data    as base++: about 160 GB of English text, `maelm prepare --preset cased --shards 10`: 64,000 symbols
# Batch   2,048 sequences of 512 tokens = 1,048,576 tokens. With SEQUENCES_PER_GPU=16 (--max-tokens 8192):
#             GPUS           8   16   32   64
#             --update-freq 16    8    4    2
#         and with SEQUENCES_PER_GPU=32 on GPUs of 80 GB and more half of these
# Cost    1.977 GFLOP a token, 1.05 trillion tokens: 2,074 exaFLOP. Estimated, not measured, at 30 % of the half-precision
#         peak: 81 days of one H100 or H200, 256 days of one A100
# Disk    5 GB a checkpoint; the last two, the best and every 100,000th update are kept: about 70 GB
# Expect  16 bits at the first update (log2 of 64,000). The paper fine-tunes the result to 90.4/90.6 on MNLI and to a
#         GLUE average of 89.3
#
# Options: common.sh.

ARCHITECTURE=maelm_large_plus_plus # 128 relative buckets up to distance 256
MAX_STEPS=1000000
WARM_UP_STEPS=10000
PEAK_LEARNING_RATE=1e-4
CLIP_NORM=1.0
BATCH_SEQUENCES=2048
SEQUENCE_LENGTH=512

SAVE_STEPS=2500
KEEP_STEPS=100000
: "${SEQUENCES_PER_GPU:=16}"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
