#!/usr/bin/env bash
# A retrieval task in BEIR layout from end to end: prepare, search with the encoder as pretraining left it, fine-tune,
# search again, and a table of both on the test queries.
#
#     bash examples/retrieval/run.sh BEIR DATA CHECKPOINT OUTPUT [OPTIONS] [-- FAIRSEQ OPTIONS]
#
# BEIR        folder with corpus.jsonl, queries.jsonl and qrels/{train,test}.tsv, perhaps dev.tsv
# DATA        folder of `maelm prepare corpus` that the checkpoint was pretrained on
# CHECKPOINT  of pretraining
# OUTPUT      folder for everything that is made; what is there already is not made again
# OPTIONS     of `maelm finetune`, and
#     --valid-fraction X   share of the training queries that is held out if there is no dev.tsv (0.1)
#     --max-length N       longer queries and documents are cut; the encoder must have as many positions (256)

# shellcheck source=examples/shell.sh
source "$(dirname "${BASH_SOURCE[0]}")/../shell.sh"

(($# >= 4)) || fail "usage: run.sh BEIR DATA CHECKPOINT OUTPUT [OPTIONS] [-- FAIRSEQ OPTIONS]"
BEIR=$1 DATA=$2 CHECKPOINT=$3 OUTPUT=$4
shift 4
take_options VALID_FRACTION=0.1 MAX_LENGTH=256 -- "$@"
set -- "${REST[@]}"
need maelm

HELD_OUT=(--valid-fraction "$VALID_FRACTION")
if [[ -f $BEIR/qrels/dev.tsv ]]; then HELD_OUT=(); fi
if [[ ! -d $OUTPUT/task ]]; then
    mkdir -p "$OUTPUT"
    maelm prepare retrieval "$BEIR" --vocabulary "$DATA" --output "$OUTPUT/task" "${HELD_OUT[@]}"
fi

# find_documents NAME CHECKPOINT [EMBED OPTIONS]: embed corpus and queries and search.
find_documents() {
    local name=$1 checkpoint=$2
    shift 2
    if [[ -f $OUTPUT/$name.run ]]; then return; fi
    maelm embed "$BEIR/corpus.jsonl" --checkpoint "$checkpoint" --output "$OUTPUT/$name/documents" "$@"
    maelm embed "$BEIR/queries.jsonl" --checkpoint "$checkpoint" --output "$OUTPUT/$name/queries" "$@"
    maelm search "$OUTPUT/$name/queries" "$OUTPUT/$name/documents" --output "$OUTPUT/$name.run"
}

# Both searches cut texts at the same length, compare by the mean of the states and by the cosine.
find_documents before "$CHECKPOINT" --pooling mean --similarity cosine --max-length "$MAX_LENGTH"
if [[ ! -f $OUTPUT/after.run ]]; then
    [[ " $* " == *" -- "* ]] || set -- "$@" --
    maelm finetune "$OUTPUT/task" --checkpoint "$CHECKPOINT" --output "$OUTPUT/checkpoints" \
        "$@" --tokens-per-sample "$MAX_LENGTH"
fi
find_documents after "$OUTPUT/checkpoints"

maelm evaluate retrieval "$OUTPUT/before.run" "$OUTPUT/after.run" --qrels "$OUTPUT/task/qrels/test.tsv" |
    tee "$OUTPUT/results.md"
