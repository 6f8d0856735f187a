#!/usr/bin/env bash
# MAE-LM small on a computer without a GPU: the model of small.sh, short sequences, small batches. The settings are ours,
# not the paper's.
#
#     DATA=data SAVE_DIR=small_cpu GPUS=0 bash examples/pretraining/small_cpu.sh
#
# Data    50 MB of text and more, `maelm prepare --vocabulary-size 16384`
# Batch   16 sequences of 128 tokens = 2,048 tokens, in one step
# Cost    about 0.08 GFLOP a token, 10 million tokens: 0.8 petaFLOP. Estimated, not measured, at the 100 GFLOP/s that two
#         cores of a server give: 2 hours
# Disk    0.3 GB a checkpoint; the last two, the best and every 2,500th update are kept
# Expect  14 bits at the first update (log2 of 16,384) and 11 after a hundred; the way from there is slow
#
# Options: common.sh.

ARCHITECTURE=maelm_small # 32 relative buckets up to distance 128
MAX_STEPS=5000
WARM_UP_STEPS=500
PEAK_LEARNING_RATE=1e-3
CLIP_NORM=2.0
BATCH_SEQUENCES=16
SEQUENCE_LENGTH=128

SAVE_STEPS=500
KEEP_STEPS=2500
: "${SEQUENCES_PER_GPU:=16}"
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
