#!/usr/bin/env bash
# Installs what tests need beyond the package and beyond Debian's packages (`debian.sh`), for the interpreter
# that is named ($1): Dask, Ray, psycopg2 and the libraries whose training loops and logs are watched. What
# cannot be installed is said in a line, and its tests are skipped.
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${1:?"usage: $0 PYTHON"}

pip() {
  "$python" -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt "$@"
}

# What is installed together, and the modules that it is known by.
modules=(
  "flask moto s3fs torchao"
  "dask_jobqueue distributed psycopg2 ray"
  "accelerate ipykernel lightning mcp nbconvert tensorboard transformers uv wandb"
)
# Brackets are part of names here.
set -f
packages=(
  "s3fs moto[s3,server] torchao"
  "--editable .[dask,ray] psycopg2-binary"
  "accelerate ipykernel lightning mcp nbconvert tensorboard transformers uv wandb"
)
groups=()
for index in "${!modules[@]}"; do
  "$python" -c "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))" \
    ${modules[index]} || groups+=("${packages[index]}")
done
# All at once is faster, but fails if a single one cannot be installed.
if [ ${#groups[@]} -gt 0 ] && ! pip ${groups[@]} 2>/dev/null; then
  for group in "${groups[@]}"; do
    pip $group || echo "pip does not install all of $group here; tests that need them will be skipped."
  done
fi
# It is built with the torch that is there, and none of its kernels are.
if ! "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("deepspeed") is None)'; then
  DS_BUILD_OPS=0 pip --no-build-isolation deepspeed ||
    echo "pip does not install deepspeed here; tests that need it will be skipped."
fi
exit 0
