#!/usr/bin/env bash
# Gathers, where there is a network, what a bare GPU machine lacks: scratch/gpu/wheels, and the folders that are named.
#     bash studies/gpu/pack.sh [videos=FOLDER] [tasks=FOLDER] ...
# Others to measure beside, of versions that fit the torch of the machine: EXTRA_WHEELS="torchcodec==0.11.* lightly".
# Then bring the repository with scratch/gpu to the machine, at once or in parts, and run studies/gpu/setup.sh there.
set -euo pipefail
cd "$(dirname "$0")/../.."
python_version=${PYTHON_VERSION:-3.12}
mkdir -p scratch/gpu/wheels
# torch, torchvision, timm, pyarrow, rich, matplotlib and tensorboard are expected there.
"${PYTHON:-.venv/bin/python}" -m pip download --quiet --dest scratch/gpu/wheels --no-deps --only-binary=:all: \
    --python-version "$python_version" av simplejpeg msgspec tyro docstring-parser typeguard safetensors ${EXTRA_WHEELS:-}
for part in "$@"; do
    rm -rf "scratch/gpu/${part%%=*}"
    cp -rL "${part#*=}" "scratch/gpu/${part%%=*}"
done
du -sh scratch/gpu/*
