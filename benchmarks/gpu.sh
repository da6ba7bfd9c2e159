#!/usr/bin/env bash
# The time of a step on this machine's GPU against PyTorch, in under 8 minutes:
#   benchmarks/gpu.sh            writes benchmarks/results/gpu.json and gpu.md
#   benchmarks/gpu.sh --help     shows the options
# It needs the repository and an environment with its wheels (`make setup ACCELERATOR=gpu`); PYTHON names another one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z "${PYTHON:-}" ]]; then
  PYTHON=python3
  [[ ! -x .venv/bin/python ]] || PYTHON=.venv/bin/python
fi
exec "$PYTHON" -m benchmarks gpu "$@"
