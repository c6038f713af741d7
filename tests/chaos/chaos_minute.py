"""A few kills and signals with fixed seeds, on one stage: what every run of the tests can afford.

python tests/chaos/chaos_minute.py
"""

from __future__ import annotations

import json

import chaos_kills
import chaos_signals
import chaos_stage

SUPERVISORS, TRIALS, SIGNALS = 8, 6, 4
SEED = 1


if __name__ == "__main__":
    with chaos_stage.theatre() as (folder, database):
        found = {
            "supervisors": chaos_kills.run("supervisors", SUPERVISORS, SEED, folder, database),
            "trials": chaos_kills.run("trials", TRIALS, SEED, folder, database),
            "signals": chaos_signals.signals(SIGNALS, SEED, folder, database),
        }
    print(json.dumps(found, indent=1))
