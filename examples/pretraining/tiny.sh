#!/usr/bin/env bash
# A rehearsal: 200 updates of a 2-layer model, 128 wide, in a minute or two on anything. It shows that the data, the
# environment and the way of starting on your machines work before a real run takes them for days.
#
#     DATA=data SAVE_DIR=tiny bash examples/pretraining/tiny.sh
#
# Batch   64 sequences of 128 tokens = 8,192 tokens. With SEQUENCES_PER_GPU=8 (--max-tokens 1024):
#             GPUS           0 or 1    2    4    8
#             --update-freq       8    4    2    1
# Expect  log2 of the number of symbols at the first update, 3 to 5 bits less at the last; nothing that could be used
#
# Options: common.sh.

ARCHITECTURE=maelm_tiny # 32 relative buckets up to distance 128
MAX_STEPS=200
WARM_UP_STEPS=20
PEAK_LEARNING_RATE=1e-3
CLIP_NORM=2.0
BATCH_SEQUENCES=64
SEQUENCE_LENGTH=128

SAVE_STEPS=100
KEEP_STEPS=1000
: "${SEQUENCES_PER_GPU:=8}"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
