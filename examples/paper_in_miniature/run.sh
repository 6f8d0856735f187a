#!/usr/bin/env bash
# The paper's comparison at a small scale: pretrains MLM and MAE-LM alike, analyses and fine-tunes both, and writes one
# page with the figures and the table; sets everything up first.
#
#     bash examples/paper_in_miniature/run.sh --tasks GLUE TEXT FILES...       --help lists the options
#
# GLUE holds the folders CoLA, SST-2, RTE and STS-B with train.tsv and dev.tsv as GLUE distributes them; text files hold
# a paragraph a line and a blank line between documents. Run it again after an interruption: finished steps are skipped
# and pretraining goes on where it stopped.

# shellcheck source=examples/shell.sh
source "$(dirname "${BASH_SOURCE[0]}")/../shell.sh"

set_up plots
# exec, so that Ctrl-C and kill reach the program that must stop its commands.
exec "$VENV/bin/python" "$ROOT/examples/paper_in_miniature/miniature.py" "$@"
