# shellcheck shell=bash
# What all recipes of this folder share; they set their numbers and then source this file.
#
# A recipe sets ARCHITECTURE, MAX_STEPS, WARM_UP_STEPS, PEAK_LEARNING_RATE, CLIP_NORM, BATCH_SEQUENCES,
# SEQUENCE_LENGTH, SAVE_STEPS and KEEP_STEPS. Its user sets environment variables:
#
#   what is computed
#     DATA                the folder of `maelm prepare`; several shards with a colon between them
#     SAVE_DIR            where checkpoints go; the same command resumes from checkpoint_last.pt there
#     METHOD              maelm (default), or mlm: plain masked language modeling with the same encoder, the
#                         paper's "RoBERTa (Ours)"
#   how it is computed
#     GPUS                in total, over all nodes (default: those of this machine); 0 runs on the CPU
#     SEQUENCES_PER_GPU   full-length sequences that a GPU takes at a time (default 32); memory decides. The rest of
#                         the batch is accumulated with --update-freq
#     PRECISION           fp16 (default on GPUs), bf16 or fp32
#     NODES, NODE_RANK, MASTER_ADDR, MASTER_PORT
#                         with NODES above 1 the recipe is started on every node and uses torchrun
#     DRY_RUN=1           write the command instead of running it
#
# Arguments go to fairseq-train after the recipe's own, so they win: `base.sh --tensorboard-logdir logs`.

# shellcheck source=examples/shell.sh
source "$(dirname "${BASH_SOURCE[0]}")/../shell.sh"

count_gpus() {
    if command -v nvidia-smi >/dev/null; then
        { nvidia-smi --list-gpus 2>/dev/null || true; } | grep -c '^GPU' || true
    else
        echo 0
    fi
}

is_count() { [[ $1 =~ ^[0-9]+$ ]]; }

: "${DATA:=}" "${SAVE_DIR:=}" "${METHOD:=maelm}" "${SEQUENCES_PER_GPU:=32}" "${NODES:=1}" "${DRY_RUN:=}"
: "${GPUS:=$(count_gpus)}" "${MASTER_PORT:=29500}"

[[ -n $DATA ]] || fail "set DATA to the folder of \`maelm prepare\`, for example: DATA=data SAVE_DIR=run bash $0"
[[ -n $SAVE_DIR ]] || fail "set SAVE_DIR to the folder for checkpoints, for example: DATA=$DATA SAVE_DIR=run bash $0"
[[ -f ${DATA%%:*}/dict.txt ]] || fail "there is no dict.txt in ${DATA%%:*}: DATA must be the folder of \`maelm prepare\`"
for name in GPUS SEQUENCES_PER_GPU NODES MASTER_PORT; do
    is_count "${!name}" || fail "$name must be a whole number, not '${!name}'"
done
((SEQUENCES_PER_GPU > 0 && NODES > 0)) || fail "SEQUENCES_PER_GPU and NODES must be at least 1"
((GPUS % NODES == 0 && (GPUS > 0 || NODES == 1))) || fail "GPUS=$GPUS must be a multiple of NODES=$NODES: it counts the GPUs of all nodes"

# --- The batch: GPUs x sequences per GPU x update frequency = BATCH_SEQUENCES -----------------------------------------
STEP_SEQUENCES=$(((GPUS > 0 ? GPUS : 1) * SEQUENCES_PER_GPU))
((BATCH_SEQUENCES % STEP_SEQUENCES == 0)) ||
    fail "GPUS=$GPUS with SEQUENCES_PER_GPU=$SEQUENCES_PER_GPU takes $STEP_SEQUENCES sequences at a time, and a batch of $BATCH_SEQUENCES is no multiple of that: change one of them"
UPDATE_FREQUENCY=$((BATCH_SEQUENCES / STEP_SEQUENCES))

case $METHOD in
    maelm) METHOD_OPTIONS=(--masked-input dropped) ;;
    mlm) METHOD_OPTIONS=(--masked-input kept --decoder-layers 0) ;;
    *) fail "METHOD must be maelm or mlm, not '$METHOD'" ;;
esac

# --- What changes speed only ------------------------------------------------------------------------------------------
: "${PRECISION:=$( ((GPUS > 0)) && echo fp16 || echo fp32)}"
case $PRECISION in
    fp16)
        ((GPUS > 0)) || fail "PRECISION=fp16 needs a GPU"
        # The loss scale of the authors' script: it starts low and is tried higher after 256 updates without overflow.
        SPEED_OPTIONS=(--fp16 --fp16-init-scale 4 --fp16-scale-window 256)
        ;;
    bf16) SPEED_OPTIONS=(--precision bf16) ;;
    fp32) SPEED_OPTIONS=() ;;
    *) fail "PRECISION must be bf16, fp16 or fp32, not '$PRECISION'" ;;
esac
SPEED_OPTIONS+=(--num-workers 2)

if ((GPUS == 0)); then
    SPEED_OPTIONS+=(--cpu)
else
    # Said even for one GPU a node: fairseq would otherwise take the number of GPUs it sees for all there are.
    SPEED_OPTIONS+=(--distributed-world-size "$GPUS")
fi

if ((NODES > 1)); then
    [[ -n ${NODE_RANK:-} && -n ${MASTER_ADDR:-} ]] ||
        fail "with NODES=$NODES also set NODE_RANK (0 ... $((NODES - 1)), another on every node) and MASTER_ADDR (host name of node 0)"
    COMMAND=(
        torchrun --nnodes "$NODES" --node-rank "$NODE_RANK" --nproc-per-node $((GPUS / NODES))
        --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" -m fairseq_cli.train
    )
else
    COMMAND=(fairseq-train)
fi

# --- What changes results ---------------------------------------------------------------------------------------------
COMMAND+=(
    "$DATA" --user-dir "$ROOT/fairseq_maelm" --save-dir "$SAVE_DIR"
    --task maelm --criterion maelm --arch "$ARCHITECTURE" "${METHOD_OPTIONS[@]}"
    --sample-break-mode complete_doc --tokens-per-sample "$SEQUENCE_LENGTH" --max-positions "$SEQUENCE_LENGTH"
    --mask-prob 0.15 --leave-unmasked-prob 0 --random-token-prob 0
    --max-tokens $((SEQUENCES_PER_GPU * SEQUENCE_LENGTH)) --update-freq "$UPDATE_FREQUENCY"
    --max-update "$MAX_STEPS" --total-num-update "$MAX_STEPS" --warmup-updates "$WARM_UP_STEPS"
    --lr-scheduler polynomial_decay --lr "$PEAK_LEARNING_RATE"
    --optimizer fused_adamw --adam-betas "(0.9, 0.98)" --adam-eps 1e-6 --weight-decay 0.01 --clip-norm "$CLIP_NORM"
    --dropout 0.1 --attention-dropout 0.1 --seed 1
    --log-format json --log-interval 100
    --save-interval-updates "$SAVE_STEPS" --keep-interval-updates 2 --keep-interval-updates-pattern "$KEEP_STEPS"
    --no-epoch-checkpoints
    "${SPEED_OPTIONS[@]}" "$@"
)

if [[ -n $DRY_RUN ]]; then
    printf '%q ' "${COMMAND[@]}"
    printf '\n'
    exit 0
fi
need "${COMMAND[0]}"
exec "${COMMAND[@]}"
