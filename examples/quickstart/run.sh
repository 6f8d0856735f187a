#!/usr/bin/env bash
# Pretrains a small MAE-LM on text, fine-tunes it and shows what it learned; sets everything up first.
#
#     bash examples/quickstart/run.sh [OPTIONS] [TEXT FILES...]     --help lists the options
#
# Without text files it takes the docstrings of this Python installation. About 10 minutes on 2 cores after the set-up,
# no network. Run it again after an interruption: finished steps are skipped and training resumes where it stopped.

set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
VENV=${MAELM_VENV:-$ROOT/.venv}
[[ $VENV == /* ]] || VENV=$PWD/$VENV
MAELM_VENV=$VENV bash "$ROOT/scripts/setup.sh" plots
# exec, so that Ctrl-C and kill reach the program that must stop its commands.
exec "$VENV/bin/python" "$ROOT/examples/quickstart/quickstart.py" "$@"
