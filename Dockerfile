# An image with everything installed. On a CPU, and on a GPU with a base of your choice:
#
#     docker build --tag fairseq_maelm .
#     docker build --tag fairseq_maelm --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 .
#     docker run --rm --gpus all --volume "$PWD:/data" fairseq_maelm maelm pretrain data --output base --recipe base
ARG BASE=python:3.11-slim
FROM ${BASE}

# A CUDA base has no Python. fairseq is compiled here on most Pythons, and Triton's kernels at their first use.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
        $(command -v python3 >/dev/null || echo python3 python3-dev python3-venv) \
    && rm -rf /var/lib/apt/lists/*

ARG EXTRAS=hf,onnx,plots,tensorboard
# An index with torch's CPU build saves several GB where there is no GPU.
ARG PIP_EXTRA_INDEX_URL=
ENV MAELM_VENV=/venv PATH=/venv/bin:$PATH PIP_NO_CACHE_DIR=1
COPY . /fairseq_maelm
# Bytecode that a container writes ends with it. Some packages hold templates, which do not compile.
RUN bash /fairseq_maelm/scripts/setup.sh "$EXTRAS" && { python -m compileall -q -j 0 /venv || true; }

WORKDIR /data
CMD ["maelm", "--help"]
