#!/usr/bin/env bash
# `maelm pretrain` on several machines without a scheduler. Start it on each machine, with its own rank:
#     NODES=4 RANK=0 MASTER=node0 bash torchrun.sh DATA SAVE_DIR [RECIPE]
# To start a recipe's script instead: GPUS=32 torchrun ... --no-python bash base.sh DATA SAVE_DIR
set -euo pipefail
DATA=${1:?the data folder} SAVE_DIR=${2:?the folder for checkpoints, shared by the machines} RECIPE=${3:-base}
NODES=${NODES:?the number of machines} RANK=${RANK:?the rank of this machine, from 0}
MASTER=${MASTER:?the host of rank 0}
GPUS=${GPUS:-8}  # of each machine

torchrun --nnodes "$NODES" --node-rank "$RANK" --nproc-per-node "$GPUS" --master-addr "$MASTER" --master-port 29500 \
    --no-python maelm pretrain "$DATA" --output "$SAVE_DIR" --recipe "$RECIPE" --gpus $((NODES * GPUS))
