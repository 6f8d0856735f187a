#!/usr/bin/env bash
# What a GPU machine without a network lacks, as files to take along: fairseq and the packages it needs, and texts.
#
#     bash benchmarks/pack.sh FOLDER TEXT...      FOLDER gets site.tar.xz (3 MB) and the texts
#
# The machine must have torch, Triton, transformers, sentencepiece, scikit-learn, sacrebleu and pytest. PYTHON_THERE is its
# Python (3.12, for which fairseq has a wheel). pip here may be of any Python.
set -euo pipefail
folder=${1:?usage: pack.sh FOLDER TEXT...}
there=${PYTHON_THERE:-3.12}
shift
mkdir -p "$folder/site"
platforms=()
for glibc in 2_28 2_27 2_17; do platforms+=(--platform "manylinux_${glibc}_x86_64"); done
python3 -m pip install -q --upgrade --no-deps --no-compile --only-binary=:all: --python-version "$there" --implementation cp \
    "${platforms[@]}" --platform manylinux2014_x86_64 --target "$folder/site" \
    fairseq-fixed==0.12.3.1 hydra-core==1.3.2 omegaconf==2.3.0 bitarray portalocker colorama
# It comes as source alone, and is pure Python.
python3 -m pip install -q --upgrade --no-deps --no-compile --target "$folder/site" antlr4-python3-runtime==4.9.3
# Examples and extension modules that training does not load: nine tenths of the wheel.
rm -rf "$folder"/site/fairseq/{examples,libnat*,libbase*} "$folder"/site/alignment_train_cpu_binding*
tar cJf "$folder/site.tar.xz" -C "$folder" site
rm -r "$folder/site"
for text in "$@"; do cp "$text" "$folder"; done
du -h "$folder"/*
