#!/usr/bin/env bash
# Makes the virtual environment and installs everything in it, fairseq_maelm included (editable).
#
#     bash scripts/setup.sh [EXTRAS]     EXTRAS: comma-separated, default dev,plots; the others are in setup.py
#
# Running it again takes seconds, and repairs a set-up that was interrupted. Environment variables:
#     PYTHON       the Python to build on (3.11 to 3.13; default: the first of them that is found)
#     MAELM_VENV   where the environment goes (default: .venv in the project's root). One of venv, uv or conda that is
#                  there already is extended; nothing in it is removed
#     TORCH        which torch (default: torch; for Python 3.11 without a GPU torch==2.13.0)
#     PIP_...      pip's own: PIP_EXTRA_INDEX_URL can name an index with torch's CPU build, which saves several GB
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${MAELM_VENV-$ROOT/.venv}
[[ $VENV == /* || -z $VENV ]] || VENV=$PWD/$VENV
EXTRAS=${1:-dev,plots}
BIN=$VENV/bin/python
OWN=$VENV/maelm-setup  # all that this script writes beside packages
LOG=$OWN/log
STAMP=$OWN/stamp       # what a completed set-up installed: folders, checksum, extras, torch
BUSY=$OWN/busy         # is there while a step writes: where it was killed, packages may be half installed
FAIRSEQ=$OWN/fairseq   # its archive, and the wheel that is built from it
OTHER="Set MAELM_VENV to another folder, or remove this one if nothing in it is needed."
STEP=
# What the check at the end imports is compiled for the first use.
unset PYTHONDONTWRITEBYTECODE
fail() {
    printf '\nset-up stopped: %s\n' "$1" >&2
    shift
    ((!$#)) || printf '  %s\n' "$@" >&2
    exit 1
}

interrupted() {
    [[ -z $STEP ]] || kill "$STEP" 2>/dev/null || true
    printf '\nset-up interrupted; run it again to finish it\n' >&2
    exit 130
}
trap interrupted INT TERM
# The version of an installed package.
installed() { "$BIN" -c "from importlib.metadata import version; print(version('$1'))" 2>/dev/null; }
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

find_python() {
    local candidate
    if [[ -n ${PYTHON:-} ]]; then
        VERSION=$(version_of "$PYTHON") || fail "PYTHON=$PYTHON does not run." "$("$PYTHON" --version 2>&1 | head -n 2 || true)"
        [[ $VERSION =~ ^3\.1[1-3]$ ]] || fail "PYTHON=$PYTHON is Python $VERSION; 3.11 to 3.13 are supported."
        return
    fi
    # An environment that is there already decides; a version manager may put names on the PATH that do not run.
    for candidate in "$BIN" python3.11 python3.12 python3.13 python3; do
        VERSION=$(version_of "$candidate") && [[ $VERSION =~ ^3\.1[1-3]$ ]] || continue
        PYTHON=$("$candidate" -c 'import sys; print(sys._base_executable)')
        return
    done
    fail "no Python 3.11 to 3.13 was found." "Debian, Ubuntu: apt-get install python3 python3-venv python3-dev"
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
# The environment's folder in the stamp of a completed set-up.
installed_in() { sed -n "1{s/ [0-9]* [0-9]*\$//; s|^.* /|/|; p}" "$STAMP"; }

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

check_venv() {
    [[ -n $VENV ]] || fail "MAELM_VENV is empty, perhaps because no environment of venv or uv is active." \
        "To install in a conda environment: MAELM_VENV=\$CONDA_PREFIX bash scripts/setup.sh" \
        "To make a new environment in $ROOT/.venv: unset MAELM_VENV"
    if [[ -n $(ls -A "$VENV" 2>/dev/null) && ! -e $VENV/pyvenv.cfg && ! -d $VENV/conda-meta && ! -e $BUSY ]]; then
        fail "$VENV exists and is not a virtual environment; it is left as it is." "$OTHER"
    fi
    [[ $(version_of "$BIN" || echo "$VERSION") == "$VERSION" ]] ||
        fail "$VENV has another Python than $VERSION." "$OTHER"
    [[ ! -L $BIN && ! -e $BIN ]] || version_of "$BIN" >/dev/null ||
        fail "$BIN does not run; $VENV is left as it is." "$OTHER"
    # Commands in it would start the Python of the folder where they were installed.
    [[ ! -e $STAMP || $(installed_in) -ef $VENV ]] ||
        fail "$VENV was set up as $(installed_in) and moved." "$OTHER"
}

# The environment may be the user's own: nothing is removed but what a killed pip has left.
make_venv() {
    local package
    mkdir -p "$VENV"
    exec 9<"$VENV"  # pip inherits the lock: also while an orphan writes, nobody else does
    flock --nonblock 9 || fail "another set-up is at work in $VENV." "Wait until it has ended."
    mkdir -p "$OWN"
    : >"$LOG"
    # pip takes a package with this folder for installed. It writes INSTALLER after the package's files.
    [[ ! -e $BUSY ]] || for package in "$VENV"/lib/python3*/site-packages/*.dist-info; do
        [[ ! -d $package || -e $package/INSTALLER || ! $package -nt $BUSY ]] || rm -r "$package"
    done
    if [[ ! -d $VENV/conda-meta && ! -e $VENV/bin/activate ]]; then
        step "environment" "$PYTHON" -m venv "$VENV"
    elif ! "$BIN" -m pip --version >/dev/null 2>&1; then
        step "pip" "$BIN" -m ensurepip --default-pip
    fi
}

# step WHAT COMMAND...: the command with its output in the log, a dot every ten seconds on the screen.
step() {
    local begin=$SECONDS status=0
    printf '%s ' "$1"
    : >"$BUSY"
    "${@:2}" >>"$LOG" 2>&1 &
    STEP=$!
    while kill -0 "$STEP" 2>/dev/null; do
        sleep 1
        (((SECONDS - begin) % 10)) || printf '.'
    done
    wait "$STEP" || status=$?
    # pip undoes what it cannot finish, unless it was killed.
    ((status > 128)) || rm "$BUSY"
    ((status == 0)) || fail "this step could not be finished (exit status $status); the end of $LOG:" \
        "$(grep -v "^WARNING: Location .* is ignored" "$LOG" | tail -n 25)" \
        "Mend the cause (network, disk space, compiler) and run scripts/setup.sh again."
    printf ' done (%d s)\n' $((SECONDS - begin))
}

# run_pip WHAT COMMAND ARGUMENTS...
run_pip() {
    step "$1" "$BIN" -m pip --disable-pip-version-check --no-input "$2" --constraint "$ROOT/scripts/constraints.txt" "${@:3}"
}

# Leaves fairseq's wheel in $FAIRSEQ. Text encoders need the two extension modules in Cython; all of them take five times as
# long, and fairseq's setup.py cannot choose. A build by pip would go to its cache, where other projects would find it.
fairseq_wheel() {
    local archive
    rm -rf "$FAIRSEQ"
    run_pip "fairseq's archive" download --no-deps --no-build-isolation --dest "$FAIRSEQ" "$1"
    for archive in "$FAIRSEQ"/*.tar.gz; do
        [[ -e $archive ]] || return 0  # a ready wheel
        tar -xzf "$archive" -C "$FAIRSEQ"
        cd "${archive%.tar.gz}"
        step "fairseq's build" "$BIN" -c '
import runpy, setuptools
setup = setuptools.setup
def setup_with_cython_only(ext_modules, **others):
    setup(ext_modules=[module for module in ext_modules if module.name.startswith("fairseq.data.")], **others)
setuptools.setup = setup_with_cython_only
runpy.run_path("setup.py", run_name="__main__")' bdist_wheel --dist-dir "$FAIRSEQ"
        cd "$OLDPWD"
    done
}

merge_extras
find_python
check_venv
if [[ ! -e $BUSY && $(head -n 2 "$STAMP" 2>/dev/null) == "$(identity)"$'\n'"$EXTRAS" && $(version_of "$BIN") == "$VERSION" ]] &&
    [[ -z ${TORCH:-} || $TORCH == "$(sed -n 3p "$STAMP")" ]]; then
    echo "set-up is up to date in $VENV"
    exit 0
fi
check_compiler
make_venv
echo "Python $VERSION, ${CXX:-no compiler needed}, $VENV"
TORCH=${TORCH:-$(sed -n 3p "$STAMP" 2>/dev/null || true)}  # what was chosen before stays
if [[ $VERSION == 3.11 ]] && ! installed torch >/dev/null && ! nvidia-smi -L >/dev/null 2>&1; then TORCH=${TORCH:-torch==2.13.0}; fi
run_pip "build tools, torch" install --no-compile pip setuptools setuptools_scm wheel cython numpy "${TORCH:-torch}"
# The rest must not exchange this torch.
"$BIN" -c 'from importlib.metadata import version; print("torch==" + version("torch"))' >"$OWN/constraints.txt"
if ! grep -qx "fairseq-fixed==$(installed fairseq-fixed || true)" "$ROOT/scripts/constraints.txt"; then
    fairseq_wheel fairseq-fixed
    run_pip "fairseq" install --no-compile --no-deps "$FAIRSEQ"/*.whl
    rm -r "$FAIRSEQ"
fi
run_pip "fairseq_maelm[$EXTRAS]" install --no-compile --constraint "$OWN/constraints.txt" --no-build-isolation \
    --editable "${ROOT}[$EXTRAS]"
# fairseq requires torchaudio without using it for text, and transformers fails where it is for another torch.
"$BIN" -c 'import torchaudio' 2>/dev/null ||
    "$BIN" -m pip --disable-pip-version-check --no-input uninstall --yes torchaudio >>"$LOG" 2>&1
# From another folder, so that the installed package answers and not the folder at hand.
(cd / && "$VENV/bin/maelm" user-dir && "$BIN" -c "import fairseq_cli.train, fairseq_maelm.tasks
from fairseq.data import data_utils_fast, token_block_utils_fast") >>"$LOG" 2>&1 ||
    fail "what was installed does not run: $(tail -n 5 "$LOG")"
printf '%s\n' "$(identity)" "$EXTRAS" "${TORCH:-torch}" >"$STAMP"
if [[ -d $VENV/conda-meta ]]; then USE="conda activate $VENV"; else USE="source $VENV/bin/activate"; fi
echo "set-up is complete; to use it: $USE"
