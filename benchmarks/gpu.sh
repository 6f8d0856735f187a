#!/usr/bin/env bash
# Everything that is measured on a GPU, by the python3 that has torch: see gpu.py, or --help.
exec python3 "$(dirname "${BASH_SOURCE[0]}")/gpu.py" "$@"
