#!/usr/bin/env bash
# Adapt a pretrained encoder to a domain, and compare it with itself before: one table, medians over seeds.
#
#     bash examples/domain_adaptation/run.sh FOLDER CHECKPOINT DATA OUTPUT [OPTIONS]
#
# FOLDER      *_train.txt and *_valid.txt with the domain's text; and a folder for each task, with train, dev and test as
#             .jsonl ("text" and "label", to classify) or as .conll (to label words)
# CHECKPOINT  of pretraining, decoder and prediction head included
# DATA        the folder that it was trained on: its vocabulary, and the general text
# OUTPUT      new, or the one of an interrupted run, which goes on where it was
#
# OPTIONS: python examples/domain_adaptation/adapt.py --help

# shellcheck source=examples/shell.sh
source "$(dirname "${BASH_SOURCE[0]}")/../shell.sh"

need fairseq-train
exec python "$ROOT/examples/domain_adaptation/adapt.py" "$@"
