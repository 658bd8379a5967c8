#!/usr/bin/env bash
# Fetches what benchmarks/gpu_check.py needs beyond Genesis, Gymnasium and torch, for a machine without a network.
#
#   bash benchmarks/make_gpu_extras.sh [FOLDER]      # .gpu_kit/extras, which git ignores; on a machine with pip
#   python3 -m pip install --no-index --no-deps --target SITE FOLDER/*.whl      # on the other one
#   PYTHONPATH=SITE:… python3 benchmarks/gpu_check.py
#
# EXTRAS_PYTHON names the other machine's Python (3.12).
set -euo pipefail
out=${1:-.gpu_kit/extras}
mkdir -p "$out"
python3 -m pip download --quiet --no-deps --only-binary=:all: --implementation cp \
  --python-version "${EXTRAS_PYTHON:-3.12}" --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 --platform any \
  --dest "$out" \
  absl-py docstring-parser grpcio iniconfig markdown nvidia-ml-py pluggy protobuf pytest pygments shtab tensorboard \
  tensorboard-data-server typeguard tyro werkzeug markupsafe hypothesis sortedcontainers cloudpickle
ls "$out"
