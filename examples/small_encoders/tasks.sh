#!/usr/bin/env bash
# Prepare the tasks of the table in examples/README.md with the vocabulary of the pretrained encoders.
#
#     bash examples/small_encoders/tasks.sh DATA OUTPUT [OPTIONS]
#
# DATA     the folder of `maelm prepare corpus` that the encoders were pretrained on
# OUTPUT   a folder for each task, as the recipes name it; what is there is left alone
#
# OPTIONS  the folder or file of each source; tasks without one are left out:
#     --glue      folder with CoLA, SST-2, RTE, STS-B and QNLI, as GLUE distributes them
#     --qnli      a training file in QNLI's columns that stands for the official one (train.tsv), if GLUE/QNLI has none
#     --squad     folder with train-v2.0.json and dev-v2.0.json, whatever precedes "train" and "dev" in their names;
#                 their answerable questions are taken
#     --squad-questions   number of these to train on, the first ones (all)
#     --ud-ewt    folder with en_ewt-ud-train.conllu and en_ewt-ud-dev.conllu
#     --scifact   folder in BEIR's layout
#     --scicite   folder with train.jsonl and dev.jsonl ("text", "label")

# shellcheck source=examples/shell.sh
source "$(dirname "${BASH_SOURCE[0]}")/../shell.sh"

take_options GLUE= QNLI= SQUAD= SQUAD_QUESTIONS= UD_EWT= SCIFACT= SCICITE= -- "$@"
((${#REST[@]} == 2)) || fail "usage: tasks.sh DATA OUTPUT [OPTIONS]"
DATA=${REST[0]} OUTPUT=${REST[1]}
[[ -f $DATA/dict.txt ]] || fail "there is no dict.txt in $DATA: DATA must be the folder of \`maelm prepare corpus\`"
need maelm
mkdir -p "$OUTPUT"

SCRATCH=$(mktemp -d)
trap 'rm -rf "$SCRATCH"' EXIT

# missing NAME: whether a task is still to be prepared.
missing() { [[ ! -e $OUTPUT/$1 ]]; }

if [[ -n $GLUE ]]; then
    OPTIONS=()
    [[ -z $QNLI ]] || OPTIONS=(--train-file "QNLI=$QNLI")
    maelm prepare glue "$GLUE" --vocabulary "$DATA" --output "$OUTPUT" --tasks CoLA SST-2 RTE STS-B QNLI \
        --max-length 128 "${OPTIONS[@]}"
fi
if [[ -n $SQUAD ]] && missing squad; then
    # choose_questions SPLIT [--first NUMBER]
    choose_questions() {
        local source=("$SQUAD"/*"$1"-v2.0.json)
        python "$ROOT/examples/small_encoders/choose_questions.py" "${source[0]}" "$SCRATCH/$1.json" --answerable "${@:2}"
    }
    choose_questions train ${SQUAD_QUESTIONS:+--first "$SQUAD_QUESTIONS"}
    choose_questions dev
    maelm prepare squad --vocabulary "$DATA" --train "$SCRATCH/train.json" --valid "$SCRATCH/dev.json" \
        --output "$OUTPUT/squad"
fi
if [[ -n $UD_EWT ]] && missing ud_ewt; then
    maelm prepare tagging --vocabulary "$DATA" --train "$UD_EWT/en_ewt-ud-train.conllu" \
        --valid "$UD_EWT/en_ewt-ud-dev.conllu" --output "$OUTPUT/ud_ewt"
fi
if [[ -n $SCIFACT ]] && missing scifact; then
    maelm prepare retrieval "$SCIFACT" --vocabulary "$DATA" --output "$OUTPUT/scifact" --valid-fraction 0.1
fi
if [[ -n $SCICITE ]] && missing scicite; then
    PYTHONPATH=$ROOT/examples/domain_adaptation python -c 'import sys, pathlib, tables
for split in ("train", "dev"):
    tables.write_table(*(pathlib.Path(p) for p in (f"{sys.argv[1]}/{split}.jsonl", f"{sys.argv[2]}/{split}.tsv")), None)
' "$SCICITE" "$SCRATCH"
    maelm prepare sentences --vocabulary "$DATA" --train "$SCRATCH/train.tsv" \
        --valid "$SCRATCH/dev.tsv" --output "$OUTPUT/scicite"
fi
