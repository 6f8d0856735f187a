#!/usr/bin/env bash
# Makes the virtual environment and installs everything in it, fairseq_maelm included (editable).
#
#     bash scripts/setup.sh [EXTRAS]     EXTRAS: comma-separated, default dev,plots; the others are in setup.py
#
# Running it again takes seconds, and repairs a set-up that was interrupted. Environment variables:
#     PYTHON       the Python to build on (3.10 to 3.13; default: the first of 3.11, 3.12, 3.13, 3.10 that is found)
#     MAELM_VENV   where the environment goes (default: .venv in the project's root)
# pip's own variables work too: on a machine without a GPU, PIP_EXTRA_INDEX_URL can name an index with torch's CPU build,
# which saves several GB of CUDA libraries.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${MAELM_VENV:-$ROOT/.venv}
[[ $VENV == /* ]] || VENV=$PWD/$VENV
EXTRAS=${1:-dev,plots}

BIN=$VENV/bin/python
LOG=$VENV/setup.log
STAMP=$VENV/setup.stamp   # what a completed set-up installed
BUSY=$VENV/setup.busy     # the processes of a set-up at work; one that was killed while pip wrote leaves it behind
OWNS_BUSY=
PIP=                      # the process id of pip while it runs
STEP=0

fail() {
    printf '\nset-up stopped: %s\n' "$1" >&2
    shift
    if (($#)); then printf '  %s\n' "$@" >&2; fi
    exit 1
}

step() {
    STEP=$((STEP + 1))
    printf '[%d/6] %s ' "$STEP" "$1"
}

interrupted() {
    if [[ -n $PIP ]]; then
        kill "$PIP" 2>/dev/null || true
        wait "$PIP" 2>/dev/null || true
    fi
    printf '\nset-up interrupted; run it again to finish it\n' >&2
    exit 130
}

# Stopped while pip writes, packages may be half installed: $BUSY stays, and the next run starts from an empty folder.
release() { [[ -z $OWNS_BUSY || -n $PIP ]] || rm -f "$BUSY"; }

trap interrupted INT TERM
trap release EXIT

# --- the Python and the compiler -------------------------------------------------------------------------------------

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

is_supported() { [[ $1 =~ ^3\.1[0-3]$ ]]; }

find_python() {
    local candidate version
    if [[ -n ${PYTHON:-} ]]; then
        version=$(version_of "$PYTHON") || fail "PYTHON=$PYTHON does not run." \
            "$("$PYTHON" --version 2>&1 | head -n 2 || true)" "Give the path of a Python 3.10 to 3.13."
        is_supported "$version" ||
            fail "PYTHON=$PYTHON is Python $version; 3.10 to 3.13 are supported (3.11 is recommended)."
        return
    fi
    # An environment that is there already decides; a version manager may put names on the PATH that do not run.
    for candidate in "$BIN" python3.11 python3.12 python3.13 python3.10 python3; do
        version=$(version_of "$candidate") || continue
        if is_supported "$version"; then
            PYTHON=$("$candidate" -c 'import sys; print(sys._base_executable)')
            return
        fi
    done
    fail "no Python 3.10 to 3.13 was found (3.11 is recommended)." \
        "Debian, Ubuntu: apt-get install python3 python3-venv python3-dev" \
        "Anywhere:       PYTHON=/path/to/python3.11 bash scripts/setup.sh"
}

check_venv_module() {
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$PYTHON cannot make virtual environments (its modules venv and ensurepip are missing)." \
            "Debian, Ubuntu: apt-get install python$VERSION-venv"
}

# fairseq comes as source code for every Python but one; its extension modules need a C++ compiler and Python.h.
check_compiler() {
    [[ "$VERSION $(uname -sm)" != "3.12 Linux x86_64" ]] || return 0
    local candidate include message remembered
    if [[ -z ${CXX:-} ]]; then
        for candidate in g++ c++ clang++; do
            if command -v "$candidate" >/dev/null; then CXX=$candidate && break; fi
        done
    fi
    [[ -n ${CXX:-} ]] ||
        fail "no C++ compiler (g++, c++ or clang++) was found, and fairseq has to be built from source." \
            "Debian, Ubuntu: apt-get install g++" "Fedora: dnf install gcc-c++" "macOS: xcode-select --install"
    export CXX
    include=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
    # CXX may hold options or a launcher such as ccache, hence no quotes.
    if ! message=$(printf '#include <Python.h>\n#include <vector>\nstd::vector<int> trial{PY_MAJOR_VERSION};\n' |
        $CXX -std=c++17 "-I$include" -x c++ -c -o /dev/null - 2>&1); then
        [[ $message != *Python.h* ]] ||
            fail "the headers of Python $VERSION are missing (no Python.h in $include)." \
                "Debian, Ubuntu: apt-get install python$VERSION-dev" "Fedora: dnf install python$VERSION-devel"
        fail "$CXX does not compile a small C++ program:" "$message"
    fi
    # Some Pythons remember a C compiler that this machine does not have; the sibling of the C++ one is there.
    remembered=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_config_var("CC") or "cc")')
    if [[ -z ${CC:-} ]] && ! command -v "${remembered%% *}" >/dev/null; then
        case $CXX in *clang++) export CC=clang ;; *g++) export CC=gcc ;; *) export CC=cc ;; esac
    fi
}

# --- the environment and what it holds already -----------------------------------------------------------------------

checksum() {
    "$BIN" -c 'import hashlib, pathlib, sys
print(hashlib.sha256(b"".join(pathlib.Path(path).read_bytes() for path in sys.argv[1:])).hexdigest())' \
        "$ROOT/setup.py" "$ROOT/scripts/setup.sh"
}

# The stamp's lines: folders, checksum, extras. The folders, because an editable install and the commands in an
# environment have absolute paths: an environment that was moved or copied must be set up again.
is_up_to_date() {
    local folders sum extras wanted
    [[ -f $STAMP && -x $BIN && ! -e $BUSY ]] || return 1
    { read -r folders && read -r sum && read -r extras; } <"$STAMP" || return 1
    [[ $folders == "$ROOT $VENV" && $sum == "$(checksum 2>/dev/null)" ]] || return 1
    [[ -z ${PYTHON:-} || $(version_of "$PYTHON") == "$(version_of "$BIN")" ]] || return 1
    for wanted in ${EXTRAS//,/ }; do
        [[ ,$extras, == *,$wanted,* ]] || return 1
    done
}

# Extras of earlier runs stay, so that two set-ups with different extras do not undo one another.
merge_extras() {
    local wanted merged=
    [[ ! -f $STAMP ]] || merged=$(sed -n 3p "$STAMP")
    for wanted in ${EXTRAS//,/ }; do
        [[ ,$merged, == *,$wanted,* ]] || merged=${merged:+$merged,}$wanted
    done
    EXTRAS=$merged
}

refuse_if_not_ours() {
    local owner present
    if [[ -d $VENV && ! -e $VENV/pyvenv.cfg && -n $(ls -A "$VENV") ]]; then
        fail "$VENV exists and is not a virtual environment; it is left as it is." "Set MAELM_VENV to another folder."
    fi
    # shellcheck disable=SC2013  # one line of process ids, so words are meant
    for owner in $(cat "$BUSY" 2>/dev/null); do
        if kill -0 "$owner" 2>/dev/null; then
            fail "another set-up (process $owner) is at work in $VENV." "Wait until it has ended." \
                "If process $owner is something else, remove $VENV."
        fi
    done
    if present=$(version_of "$BIN") && [[ $present != "$VERSION" ]]; then
        fail "$VENV holds Python $present, but Python $VERSION was asked for." \
            "Remove $VENV, or set MAELM_VENV to another folder."
    fi
}

make_venv() {
    if [[ ! -e $BUSY ]] && version_of "$BIN" >/dev/null && head -n 3 "$VENV/bin/pip" 2>/dev/null | grep -qF "$VENV/"; then
        echo "kept"
    else
        "$PYTHON" -m venv --clear "$VENV" ||
            fail "$PYTHON -m venv --clear $VENV did not work." "Mend the cause above and run scripts/setup.sh again."
        echo "made"
    fi
    echo $$ >"$BUSY"
    OWNS_BUSY=yes
    rm -f "$STAMP"
    : >"$LOG"
}

# --- pip -------------------------------------------------------------------------------------------------------------

# run_pip ARGUMENTS...: pip install with its output in the log, a dot every ten seconds on the screen.
run_pip() {
    local begin=$SECONDS dots=0 status=0
    printf '\n=== pip install %s\n' "$*" >>"$LOG"
    "$BIN" -m pip --disable-pip-version-check --no-input install "$@" >>"$LOG" 2>&1 &
    PIP=$!
    echo "$$ $PIP" >"$BUSY"
    while kill -0 "$PIP" 2>/dev/null; do
        sleep 1
        if (((SECONDS - begin) / 10 > dots)); then
            dots=$((dots + 1))
            printf '.'
        fi
    done
    wait "$PIP" || status=$?
    # pip undoes what it cannot finish, unless it was killed.
    ((status > 128)) || PIP=
    if ((status)); then
        printf '\n--- the end of %s:\n' "$LOG" >&2
        grep -v "^WARNING: Location .* is ignored" "$LOG" | tail -n 25 >&2
        fail "pip could not finish this step (exit status $status)." "The whole log: $LOG" \
            "Mend the cause (network, disk space, compiler) and run scripts/setup.sh again."
    fi
    printf ' done (%d s)\n' $((SECONDS - begin))
}

has_nvidia_gpu() { command -v nvidia-smi >/dev/null && [[ -n $(nvidia-smi -L 2>/dev/null) ]]; }

# Writes into TORCH with which arguments pip gets torch.
choose_torch() {
    TORCH=("torch>=2.6")
    if has_nvidia_gpu; then return; fi
    if [[ $VERSION == 3.11 ]]; then TORCH=("torch==2.13.0"); fi
}

# Writes into BUILD_NEEDS and FAIRSEQ how fairseq is installed.
choose_fairseq() {
    if [[ $VERSION == 3.10 ]]; then
        # From 24.1 on pip refuses the metadata of omegaconf 2.0, which fairseq 0.12.2 needs; numpy 1.24 removed the
        # numpy.float that it uses. Its archive lacks a C++ file that its build wants where it can import torch, so it
        # is built in isolation from the torch that is here.
        BUILD_NEEDS=("pip>=23.1,<24.1" "numpy<1.24" wheel "setuptools>=77.0.3,<81" "setuptools_scm<9")
        FAIRSEQ=(fairseq==0.12.2)
    else
        # In isolation its build would fetch a second torch. The setuptools is one that torch 2.13 accepts, and older
        # than the first without pkg_resources.
        # seqeval is built from source too, and setuptools_scm 9 and later does not serve its old way of asking for it.
        BUILD_NEEDS=(cython "numpy<3" wheel "setuptools>=77.0.3,<81" "setuptools_scm<9")
        FAIRSEQ=(--no-build-isolation fairseq-fixed==0.12.3.1)
    fi
}

# --- main ------------------------------------------------------------------------------------------------------------

KNOWN_EXTRAS="dev|docs|plots|hf|onnx|sentence-transformers|slurm|tensorboard"
[[ $EXTRAS =~ ^($KNOWN_EXTRAS)(,($KNOWN_EXTRAS))*$ ]] ||
    fail "the extras \"$EXTRAS\" are not known." "Choose from ${KNOWN_EXTRAS//|/, }, separated by commas."

if is_up_to_date; then
    echo "set-up is up to date in $VENV"
    exit 0
fi

step "Python and C++ compiler:"
find_python
VERSION=$(version_of "$PYTHON")
check_venv_module
check_compiler
echo "Python $VERSION, ${CXX:-no compiler needed}"

step "virtual environment $VENV:"
refuse_if_not_ours
merge_extras
make_venv

step "build tools"
choose_fairseq
run_pip "${BUILD_NEEDS[@]}"

step "torch"
choose_torch
run_pip "${TORCH[@]}"
# fairseq asks for torchaudio: its resolution must not exchange this torch for another build.
"$BIN" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' >"$VENV/constraints.txt"

step "fairseq (the first time it is built from source: 1 to 4 minutes)"
run_pip --constraint "$VENV/constraints.txt" "${FAIRSEQ[@]}"

step "fairseq_maelm[$EXTRAS]"
run_pip --constraint "$VENV/constraints.txt" --no-build-isolation --editable "${ROOT}[$EXTRAS]"
# fairseq installs torchaudio, perhaps for CUDA where torch is for CPUs. Nothing needs it, and transformers, which imports
# it if it is there, would fail.
(cd / && "$BIN" -c "import torchaudio") >>"$LOG" 2>&1 ||
    "$BIN" -m pip --disable-pip-version-check --no-input uninstall --yes torchaudio >>"$LOG" 2>&1

# From another folder, so that the installed package answers and not the folder at hand.
(cd / && "$VENV/bin/maelm" user-dir >>"$LOG" 2>&1) ||
    fail "everything is installed, but \"maelm user-dir\" does not run:" "$(tail -n 5 "$LOG")" "The whole log: $LOG"
printf '%s\n' "$ROOT $VENV" "$(checksum)" "$EXTRAS" >"$STAMP"
echo "set-up is complete; to use it: source $VENV/bin/activate"
