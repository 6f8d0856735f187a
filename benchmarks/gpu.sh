#!/usr/bin/env bash
# Everything that is measured on one GPU, from the matrix products' rate up to the whole training step, in one call.
#
#     bash benchmarks/gpu.sh DATA OUTPUT [STAGE ...]
#
# DATA     a folder of `maelm prepare corpus`, of about 100 MB of text
# OUTPUT   a JSON file, a table and a log for each stage; what is there is left alone, so that the call may be repeated
# STAGE    some of these, in this order; all of them take half an hour
#     kernels    tests of the CUDA kernels, and of the model on the GPU
#     attention  rate of the matrix products; attention with a relative bias, one way beside the other; block sizes
#     loss       memory and time of head and cross-entropy at 64,000 symbols
#     options    a step with and without compilation and recomputation: what they cost and when they have paid
#     step       the whole training step beside all contenders, in bf16 at 15 % and 40 % masking
#     half       the same in fp16
#
# Environment variables:
#     AUTHORS_CODE   a copy of the authors' repository, to be compared with
#     MINUTES        10      for each of the stages step and half, of which no round begins in the last two
#     DEVICE         cuda    cpu runs all of it at toy size, to try the script itself; times then mean nothing
set -uo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
(($# >= 2)) || {
    echo "gpu.sh: usage: gpu.sh DATA OUTPUT [STAGE ...]" >&2
    exit 2
}
DATA=$1 OUTPUT=$2
shift 2
STAGES=("$@")
((${#STAGES[@]})) || STAGES=(kernels attention loss options step half)
: "${AUTHORS_CODE:=}" "${MINUTES:=10}" "${DEVICE:=cuda}"
mkdir -p "$OUTPUT"

HALF=fp16 TOY_STEP=() TOY_LOSS=() ATTENTION=(--sweep)
CONTENDERS=maelm,maelm+compile,mlm,mlm+compile,roberta,mpnet,modern,modern+compile,modernbert,modernbert+compile
SETTINGS=(bf16,adam bf16 bf16,compile bf16,recompute bf16,compile,recompute)
SIZE=(--encoder-layers 12 --decoder-layers 4 --batch 64 --vocabulary 32768)
if [[ $DEVICE == cpu ]]; then
    export TRITON_INTERPRET=1
    HALF=fp32 CONTENDERS=maelm,roberta SETTINGS=(fp32) SIZE=(--arch maelm_tiny --batch 2 --length 16 --repeats 1)
    TOY_STEP=(--size tiny --layers 1 --length 32 --batch 2 --repeats 1)
    ATTENTION=(--device cpu --tiny --rounds 1) TOY_LOSS=(--rows 256 --vocabulary 4096 --width 64 --repeats 1)
fi
STEP=(--device "$DEVICE" --data "$DATA" --budget $((MINUTES - 2)) --resume --output "$OUTPUT/step.json" "${TOY_STEP[@]}")
[[ -z $AUTHORS_CODE ]] || STEP+=(--authors-code "$AUTHORS_CODE")
STEP+=(--contenders "$CONTENDERS${AUTHORS_CODE:+,authors}")

# A stage's command, its results below OUTPUT.
run_stage() {
    case $1 in
        kernels) python -m pytest -q "$HERE/../tests/modules/attention/test_triton.py" "$HERE/../tests/models/test_gpu.py" ;;
        attention) python "$HERE/attention_gpu.py" "${ATTENTION[@]}" --output "$OUTPUT/attention.json" ;;
        loss) python "$HERE/masked_token_loss.py" --device "$DEVICE" "${TOY_LOSS[@]}" --output "$OUTPUT/loss.json" ;;
        options)
            python "$HERE/training_options.py" --device "$DEVICE" "${SIZE[@]}" --settings "${SETTINGS[@]}" \
                --output "$OUTPUT/options.json"
            ;;
        step) python "$HERE/pretraining.py" "${STEP[@]}" ;;
        half) python "$HERE/pretraining.py" "${STEP[@]}" --precision "$HALF" ;;
        *)
            echo "there is no stage $1" >&2
            return 2
            ;;
    esac
}

FAILED=()
for stage in "${STAGES[@]}"; do
    if [[ -f $OUTPUT/$stage.done ]]; then continue; fi
    printf '%s: ' "$stage"
    begin=$SECONDS
    # A stage that fails holds up no other one.
    if run_stage "$stage" >"$OUTPUT/$stage.log" 2>&1; then
        touch "$OUTPUT/$stage.done"
        printf '%d s\n' $((SECONDS - begin))
    else
        FAILED+=("$stage")
        printf 'failed after %d s: %s\n' $((SECONDS - begin)) "$OUTPUT/$stage.log"
    fi
done
((${#FAILED[@]} == 0))
