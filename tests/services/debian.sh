#!/usr/bin/env bash
# Installs what tests need of Debian's packages: SLURM, munge, PostgreSQL and Chromium. What cannot be installed
# is said in a line, and its tests are skipped. No service is started.
set -uo pipefail

lacking=()
command -v setpriv >/dev/null || lacking+=(util-linux)
command -v munged >/dev/null || lacking+=(munge)
command -v slurmctld >/dev/null || lacking+=(slurm-wlm)
command -v chromium >/dev/null || lacking+=(chromium)
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
exit 0
