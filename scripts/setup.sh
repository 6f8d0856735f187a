#!/usr/bin/env bash
# Makes the virtual environment and installs everything in it, fairseq_maelm included (editable).
#
#     bash scripts/setup.sh [EXTRAS]     EXTRAS: comma-separated, default dev,plots; the others are in setup.py
#
# Running it again takes seconds, and repairs a set-up that was interrupted. Environment variables:
#     PYTHON       the Python to build on (3.10 to 3.13; default: the first of 3.11, 3.12, 3.13, 3.10 that is found)
#     MAELM_VENV   where the environment goes (default: .venv in the project's root)
#     TORCH        which torch (default: torch; for Python 3.11 without a GPU torch==2.13.0)
#     PIP_...      pip's own: PIP_EXTRA_INDEX_URL can name an index with torch's CPU build, which saves several GB
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${MAELM_VENV:-$ROOT/.venv}
[[ $VENV == /* ]] || VENV=$PWD/$VENV
EXTRAS=${1:-dev,plots}
BIN=$VENV/bin/python
LOG=$VENV/setup.log
STAMP=$VENV/setup.stamp   # what a completed set-up installed: folders, checksum, extras, torch
BUSY=$VENV/setup.busy     # is there while pip writes: where pip was killed, packages may be half installed
PIP=
fail() {
    printf '\nset-up stopped: %s\n' "$1" >&2
    shift
    ((!$#)) || printf '  %s\n' "$@" >&2
    exit 1
}

interrupted() {
    [[ -z $PIP ]] || kill "$PIP" 2>/dev/null || true
    printf '\nset-up interrupted; run it again to finish it\n' >&2
    exit 130
}
trap interrupted INT TERM
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

find_python() {
    local candidate
    if [[ -n ${PYTHON:-} ]]; then
        VERSION=$(version_of "$PYTHON") || fail "PYTHON=$PYTHON does not run." "$("$PYTHON" --version 2>&1 | head -n 2 || true)"
        [[ $VERSION =~ ^3\.1[0-3]$ ]] || fail "PYTHON=$PYTHON is Python $VERSION; 3.10 to 3.13 are supported."
        return
    fi
    # An environment that is there already decides; a version manager may put names on the PATH that do not run.
    for candidate in "$BIN" python3.11 python3.12 python3.13 python3.10 python3; do
        VERSION=$(version_of "$candidate") && [[ $VERSION =~ ^3\.1[0-3]$ ]] || continue
        PYTHON=$("$candidate" -c 'import sys; print(sys._base_executable)')
        return
    done
    fail "no Python 3.10 to 3.13 was found." "Debian, Ubuntu: apt-get install python3 python3-venv python3-dev"
}

# fairseq comes as source code for every Python but one; its extension modules need a C++ compiler and Python.h.
check_compiler() {
    [[ "$VERSION $(uname -sm)" != "3.12 Linux x86_64" ]] || return 0
    local include message remembered
    export CXX=${CXX:-$(command -v g++ || command -v c++ || command -v clang++)}
    [[ -n $CXX ]] || fail "no C++ compiler was found, and fairseq has to be built from source." \
        "Debian, Ubuntu: apt-get install g++" "Fedora: dnf install gcc-c++"
    include=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
    # CXX may hold options or a launcher such as ccache, hence no quotes.
    message=$(printf '#include <Python.h>\n#include <vector>\nstd::vector<int> trial{PY_MAJOR_VERSION};\n' |
        $CXX -std=c++17 "-I$include" -x c++ -c -o /dev/null - 2>&1) ||
        fail "$CXX does not compile a small C++ program with Python.h:" "$message" \
            "Headers on Debian, Ubuntu: apt-get install python$VERSION-dev; on Fedora: dnf install python$VERSION-devel"
    # Some Pythons remember a C compiler that this machine does not have; the sibling of the C++ one is there.
    remembered=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_config_var("CC") or "cc")')
    if [[ -z ${CC:-} ]] && ! command -v "${remembered%% *}" >/dev/null; then
        case $CXX in *clang++) export CC=clang ;; *g++) export CC=gcc ;; *) export CC=cc ;; esac
    fi
}

# An editable install and the commands in an environment have absolute paths.
identity() { echo "$ROOT $VENV" "$(cat "$ROOT/setup.py" "$ROOT/scripts/setup.sh" "$ROOT/scripts/constraints.txt" | cksum)"; }

# Extras of earlier runs stay.
merge_extras() {
    local known extra
    known=$(sed -n 's/^    "\([a-z-]*\)": \[.*/\1/p' "$ROOT/setup.py" | tr '\n' ' ')
    for extra in ${EXTRAS//,/ }; do
        [[ " $known " == *" $extra "* ]] || fail "there is no extra \"$extra\"." "setup.py has: $known"
    done
    for extra in $(sed -n 2p "$STAMP" 2>/dev/null | tr , ' '); do
        [[ " $known " != *" $extra "* || ,$EXTRAS, == *,$extra,* ]] || EXTRAS+=,$extra
    done
    EXTRAS=$(tr , '\n' <<<"$EXTRAS" | sort | paste -sd ,)
}

make_venv() {
    if [[ -d $VENV && ! -e $VENV/pyvenv.cfg && -n $(ls -A "$VENV") ]]; then
        fail "$VENV exists and is not a virtual environment; it is left as it is." "Set MAELM_VENV to another folder."
    fi
    [[ $(version_of "$BIN" || echo "$VERSION") == "$VERSION" ]] ||
        fail "$VENV has another Python than $VERSION." "Remove it, or set MAELM_VENV to another folder."
    mkdir -p "$VENV"
    exec 9<"$VENV"  # pip inherits the lock: also while an orphan writes, nobody else does
    flock --nonblock 9 || fail "another set-up is at work in $VENV." "Wait until it has ended."
    if [[ -e $BUSY ]] || ! grep -qsF "$VENV/" "$VENV/bin/pip" || ! version_of "$BIN" >/dev/null; then
        "$PYTHON" -m venv --clear "$VENV" ||
            fail "$PYTHON cannot make virtual environments." "Debian, Ubuntu: apt-get install python$VERSION-venv"
    fi
    : >"$LOG"
}

# run_pip WHAT ARGUMENTS...: pip install with its output in the log, a dot every ten seconds on the screen.
run_pip() {
    local begin=$SECONDS status=0
    printf '%s ' "$1"
    shift
    : >"$BUSY"
    "$BIN" -m pip --disable-pip-version-check --no-input install --no-compile --constraint "$ROOT/scripts/constraints.txt" "$@" >>"$LOG" 2>&1 &
    PIP=$!
    while kill -0 "$PIP" 2>/dev/null; do
        sleep 1
        (((SECONDS - begin) % 10)) || printf '.'
    done
    wait "$PIP" || status=$?
    # pip undoes what it cannot finish, unless it was killed.
    ((status > 128)) || rm "$BUSY"
    ((status == 0)) || fail "pip could not finish this step (exit status $status); the end of $LOG:" \
        "$(grep -v "^WARNING: Location .* is ignored" "$LOG" | tail -n 25)" \
        "Mend the cause (network, disk space, compiler) and run scripts/setup.sh again."
    printf ' done (%d s)\n' $((SECONDS - begin))
}

merge_extras
find_python
if [[ ! -e $BUSY && $(head -n 2 "$STAMP" 2>/dev/null) == "$(identity)"$'\n'"$EXTRAS" && $(version_of "$BIN") == "$VERSION" ]] &&
    [[ -z ${TORCH:-} || $TORCH == "$(sed -n 3p "$STAMP")" ]]; then
    echo "set-up is up to date in $VENV"
    exit 0
fi
check_compiler
make_venv
echo "Python $VERSION, ${CXX:-no compiler needed}, $VENV"
TORCH=${TORCH:-$(sed -n 3p "$STAMP" 2>/dev/null || true)}  # what was chosen before stays
if [[ $VERSION == 3.11 ]] && ! nvidia-smi -L >/dev/null 2>&1; then TORCH=${TORCH:-torch==2.13.0}; fi
run_pip "build tools" pip setuptools setuptools_scm wheel cython numpy
run_pip "torch" "${TORCH:-torch}"
# The rest must not exchange this torch. In isolation fairseq-fixed's build would fetch a second one; the archive of fairseq
# 0.12.2 lacks a C++ file that its build wants where it can import torch.
"$BIN" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' >"$VENV/constraints.txt"
if [[ $VERSION == 3.10 ]]; then FAIRSEQ=(fairseq); else FAIRSEQ=(--no-build-isolation fairseq-fixed); fi
run_pip "fairseq (the first time it is built from source: 1 to 4 minutes)" --constraint "$VENV/constraints.txt" "${FAIRSEQ[@]}"
run_pip "fairseq_maelm[$EXTRAS]" --constraint "$VENV/constraints.txt" --no-build-isolation --editable "${ROOT}[$EXTRAS]"
# fairseq requires torchaudio without using it for text, and transformers fails where it is for another torch.
"$BIN" -m pip --disable-pip-version-check --no-input uninstall --yes torchaudio >>"$LOG" 2>&1
# pip would compile on one core. Some packages hold templates, which do not compile.
printf 'bytecode '
BEGIN=$SECONDS
"$BIN" -m compileall -q -j 0 "$("$BIN" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')" >>"$LOG" 2>&1 || true
printf ' done (%d s)\n' $((SECONDS - BEGIN))
# From another folder, so that the installed package answers and not the folder at hand.
(cd / && "$VENV/bin/maelm" user-dir >>"$LOG" 2>&1) || fail "\"maelm user-dir\" does not run: $(tail -n 5 "$LOG")"
printf '%s\n' "$(identity)" "$EXTRAS" "${TORCH:-torch}" >"$STAMP"
echo "set-up is complete; to use it: source $VENV/bin/activate"
