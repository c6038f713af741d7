"""A few kills and signals with fixed seeds, on one stage: what every run of the tests can afford.

python tests/chaos/chaos_minute.py SUPERVISORS TRIALS SIGNALS SEED [cold]

With `cold` some of the lives that a signal meets are fresh interpreters.
"""

from __future__ import annotations

import json
import sys

import chaos_kills
import chaos_signals
import chaos_stage

if __name__ == "__main__":
    supervisors, trials, signals, seed = map(int, sys.argv[1:5])
    cold = chaos_signals.COLD if "cold" in sys.argv else 0
    with chaos_stage.theatre() as (folder, database):
        found = {
            "supervisors": chaos_kills.run("supervisors", supervisors, seed, folder, database),
            "trials": chaos_kills.run("trials", trials, seed, folder, database),
            "signals": chaos_signals.signals(signals, seed, folder, database, cold),
        }
    print(json.dumps(found, indent=1))
