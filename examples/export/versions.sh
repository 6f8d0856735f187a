#!/usr/bin/env bash
# Compare an exported folder under several versions of transformers.
#
#   bash versions.sh FOLDER PYTHON PYTHON ...
#
# Each PYTHON is an interpreter with torch, transformers and safetensors. fairseq is not needed. Two environments:
#
#   python -m venv v4 && v4/bin/pip install torch 'transformers==4.57.6' safetensors
#   python -m venv v5 && v5/bin/pip install torch 'transformers>=5' safetensors
set -euo pipefail
[ "$#" -ge 3 ] || { echo "usage: bash versions.sh FOLDER PYTHON PYTHON ..." >&2; exit 2; }
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
folder="$1"
shift
results="$(mktemp -d)"
trap 'rm -r "$results"' EXIT
number=0
outputs=()
for python in "$@"; do
    number=$((number + 1))
    outputs+=("$results/$number.json")
    HF_HUB_OFFLINE=1 "$python" -W ignore "$here/versions.py" run "$folder" "$results/$number.json"
done
"$1" "$here/versions.py" compare "${outputs[@]}"
