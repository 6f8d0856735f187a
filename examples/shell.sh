# shellcheck shell=bash
# What the scripts of the examples share, to be sourced: strict mode, ROOT (the project's folder), and functions.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# fail MESSAGE: says what is wrong and ends the script with status 2.
fail() {
    printf '%s: %s\n' "$(basename "$0")" "$1" >&2
    exit 2
}

# need COMMAND: it is on the path afterwards, that of .venv where no environment with it is active.
need() {
    if ! command -v "$1" >/dev/null && [[ -x $ROOT/.venv/bin/$1 ]]; then
        PATH=$ROOT/.venv/bin:$PATH
    fi
    command -v "$1" >/dev/null ||
        fail "$1 is not installed: run 'bash scripts/setup.sh', or activate the environment that has it"
}

# set_up EXTRAS: makes the environment $VENV, MAELM_VENV or .venv, and installs the package with these extras into it.
set_up() {
    VENV=${MAELM_VENV:-$ROOT/.venv}
    [[ $VENV == /* ]] || VENV=$PWD/$VENV
    MAELM_VENV=$VENV bash "$ROOT/scripts/setup.sh" "$1"
}

# take_options NAME=DEFAULT ... -- WORD ...: sets each variable NAME to the value of its option among the words (MAX_LENGTH
# to that of --max-length), or to the default. REST holds all other words; those after a second -- are left alone.
take_options() {
    local names=() name
    while [[ $1 != -- ]]; do
        names+=("${1%%=*}")
        printf -v "${1%%=*}" %s "${1#*=}"
        shift
    done
    shift
    REST=()
    while (($#)); do
        if [[ $1 == -- ]]; then
            REST+=("$@")
            return
        fi
        for name in "${names[@]}"; do
            if [[ $1 == "--$(tr A-Z_ a-z- <<<"$name")" ]]; then
                (($# >= 2)) || fail "$1 needs a value"
                printf -v "$name" %s "$2"
                shift 2
                continue 2
            fi
        done
        REST+=("$1")
        shift
    done
}
