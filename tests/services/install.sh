#!/usr/bin/env bash
# Installs what tests need beyond the package: SLURM, munge and PostgreSQL from Debian's packages, and Dask, Ray
# and psycopg2 for the interpreter that is named ($1), and the libraries whose training loops and logs are
# watched. What cannot be installed is said in a line, and its tests are skipped. No service is started.
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${1:?"usage: $0 PYTHON"}

lacking=()
command -v setpriv >/dev/null || lacking+=(util-linux)
command -v munged >/dev/null || lacking+=(munge)
command -v slurmctld >/dev/null || lacking+=(slurm-wlm)
compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null || lacking+=(postgresql)

debian() {
  export DEBIAN_FRONTEND=noninteractive
  # Else each package starts its daemon, PostgreSQL's on its usual port.
  local policy=/usr/sbin/policy-rc.d own=
  if [ ! -e $policy ]; then
    own=$policy
    printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy
  fi
  (apt-get update -qq && apt-get install -y -qq --no-install-recommends "${lacking[@]}") >/dev/null 2>&1 ||
    echo "apt-get does not install all of ${lacking[*]} here; tests that need them will be skipped."
  [ -z "$own" ] || rm -f "$own"
}

if [ ${#lacking[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    debian
  else
    echo "Only root of a Debian can install ${lacking[*]}; tests that need them will be skipped."
  fi
fi

if ! "$python" -c 'import flask, moto, s3fs, torchao' 2>/dev/null; then
  "$python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
    s3fs 'moto[s3,server]' torchao ||
    echo "pip does not install s3fs, moto and torchao here; tests that need them will be skipped."
fi

if ! "$python" -c 'import dask_jobqueue, distributed, psycopg2, ray' 2>/dev/null; then
  "$python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
    --editable '.[dask,ray]' psycopg2-binary ||
    echo "pip does not install dask, ray and psycopg2-binary here; tests that need them will be skipped."
fi
if ! "$python" -c 'import accelerate, ipykernel, lightning, mcp, nbconvert, tensorboard, transformers, uv, wandb' 2>/dev/null; then
  "$python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
    accelerate ipykernel lightning mcp nbconvert tensorboard transformers uv wandb ||
    echo "pip does not install all of accelerate, ipykernel, lightning, mcp, nbconvert, tensorboard, transformers," \
      "uv and wandb here; tests that need them will be skipped."
fi
# It is built with the torch that is there, and none of its kernels are.
if ! "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("deepspeed") is None)'; then
  DS_BUILD_OPS=0 "$python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
    --no-build-isolation deepspeed ||
    echo "pip does not install deepspeed here; tests that need it will be skipped."
fi
exit 0
