#!/usr/bin/env bash
# Makes .venv and installs what pyproject.toml and lab/pyproject.toml name, at the versions of
# constraints.txt, and the lab itself, in editable mode. stepguard runs from its folder, uninstalled: with
# the .venv of one clone, `pytest` in another would else measure with the engine of the first.
#
#     scripts/setup.sh perf     what the suite and the lab need
#     scripts/setup.sh test     and what the project's own tests and linters need
#     scripts/setup.sh oldest   what the tests need, at the oldest versions allowed, in .venv-oldest
#
# On a machine with a GPU whose kind has recordings in baselines/ torch is theirs, since figures are
# compared under one torch alone. For another one: make perf PYTHON=python3.
#
# Nothing is done while .venv/.stepguard-perf (-test) is newer than its inputs and names the
# torch that is wanted. A .venv that an interrupted set-up left, or whose interpreter does not run, is made
# anew; one that somebody else made is installed into. pip's own configuration decides where packages
# come from.
#
# TORCH_INDEX_URL: where torch alone comes from (pip's --index-url). On a machine without a GPU, set
# it to the CPU wheel index that the PyTorch install page names, or pip may fetch the CUDA build.
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:?usage: scripts/setup.sh perf|test|oldest}
venv=.venv
versions=pins
[ "$what" != oldest ] || venv=.venv-oldest versions=oldest
python=$venv/bin/python
install=(--disable-pip-version-check install --quiet --no-compile)
pip=("$python" -m pip "${install[@]}")
unfinished=$venv/.stepguard-unfinished
inputs=(constraints.txt pyproject.toml lab/pyproject.toml scripts/setup.sh scripts/requirements.py)
# What torch was built for; an import of torch would take seconds.
cuda_of_torch='
import runpy, sysconfig
print(runpy.run_path(sysconfig.get_path("platlib") + "/torch/version.py")["cuda"] or "")'

die() { echo "set-up: $1" >&2; exit 1; }
say() { echo "set-up: $1" >&2; }

is_ready() {
    local input
    [ ! -e "$unfinished" ] && [ -e "$venv/.stepguard-$1" ] && "$python" -c '' 2>/dev/null || return 1
    for input in "${inputs[@]}"; do
        [ "$venv/.stepguard-$1" -nt "$input" ] || return 1
    done
    [ "$(cat "$venv/.stepguard-$1")" = "$(pinned_torch)" ]
}

pinned_torch() { "$python" scripts/requirements.py "$versions" | grep '^torch=='; }

has_gpu() { compgen -G '/dev/nvidia[0-9]*' >/dev/null || nvidia-smi -L >/dev/null 2>&1; }

find_interpreter() {
    local name
    for name in python3 python3.11 python3.12 python3.13 python3.14; do
        if "$name" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
        then
            command -v "$name"
            return
        fi
    done
    die "no Python 3.11 or newer with the venv module was found; install one (on Debian and Ubuntu the package is python3-venv)"
}

make_venv() {
    local interpreter
    if [ ! -e "$unfinished" ] && "$python" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
    then
        return
    fi
    interpreter=$(find_interpreter)
    say "making $venv with $("$interpreter" --version)"
    rm -rf "$venv"
    mkdir "$venv"
    touch "$unfinished"
    "$interpreter" -m venv --without-pip "$venv"
    # The interpreter's own pip, if it has one, is three times as fast as ensurepip, which unpacks and
    # compiles an older pip first.
    if "$interpreter" -m pip --python "$venv" "${install[@]}" -c constraints.txt pip 2>/dev/null
    then
        return
    fi
    "$python" -m ensurepip --upgrade >/dev/null
    # That of Python 3.11 takes four times as long to choose versions, but would do.
    "${pip[@]}" -c constraints.txt --upgrade pip || say "pip stays as it came with Python"
}

install() {
    local pinned built compiling list=$1
    [ "$1" != perf ] || list=clone
    [ ! -e "$venv/.stepguard-perf" ] || touch "$unfinished" # it is ours, so it may be made anew
    pinned=$(pinned_torch)
    say "installing for $1, $pinned among it"
    "${pip[@]}" --no-deps ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "$pinned"
    compile 1 & # torch, while pip keeps one core busy with all else
    compiling=$!
    "${pip[@]}" -c <("$python" scripts/requirements.py "$versions") \
        -r <("$python" scripts/requirements.py list "$list")
    PYTHONWARNINGS=ignore "${pip[@]}" --no-deps --no-build-isolation -e lab
    wait "$compiling"
    compile "$(nproc)"
    if [ "${CI:-}" = true ] && ! has_gpu; then
        built=$("$python" -c "$cuda_of_torch")
        [ -z "$built" ] || die "no GPU here, but $pinned came as the build for CUDA $built; set TORCH_INDEX_URL to the CPU wheel index that the PyTorch install page names"
    fi
    echo "$pinned" >"$venv/.stepguard-perf"
    [ "$1" = perf ] || echo "$pinned" >"$venv/.stepguard-$1"
    rm -f "$unfinished"
}

# Writes the bytecode that is missing, in so many processes. Most of what no launch imports is left
# out, and a file for a newer Python does not compile. The first import is too late: where Python is
# told to write no bytecode, every launch would compile torch. compileall's own processes get each
# file by itself, which takes 5 s of a core.
compile() {
    local unused='tests?|testing/_internal|benchmarks?|_vendor|pip|fontTools|pygments/lexers|mypyc?'
    unused+='|transformers/(models|exporters|pipelines|cli)|accelerate/(commands|test_utils)'
    unused+='|sympy/(physics|stats|vector|codegen|parsing|combinatorics)|scipy/(signal|io|cluster)'
    unused+='|torch/distributed/(checkpoint|pipelining)|torchgen|numpy/distutils'
    unused+='|matplotlib/backends|mpl_toolkits|fsspec/implementations|typer|click|requests|urllib3'
    unused+='|httpx2|httpcore2|setuptools|lightning(_fabric)?|pytorch_lightning|torchmetrics'
    unused+='|huggingface_hub|aiohttp|duckdb|PIL|rich|markdown_it'
    unused+='|hypothesis|anyio|xdist|pytest_benchmark' # pytest compiles its plugins by itself
    printf '%s\0' "$venv"/lib/python*/site-packages/* |
        xargs -0 -n 8 -P "$1" "$python" -m compileall -q -q -x "/($unused)/" || true
}

[ "$(uname -s)" = Linux ] || die "stepguard measures on Linux only"
case $what in perf | test | oldest) ;; *) die "perf, test or oldest, not '$what'" ;; esac
if ! is_ready "$what"; then
    mkdir -p .stepguard
    exec 9>.stepguard/setup.lock
    flock 9 # two makes at once: the second waits and finds it done
    if ! is_ready "$what"; then
        make_venv
        install "$what"
        say "done"
    fi
fi
