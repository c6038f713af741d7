"""Replays searches over recorded surfaces to see which finds a good configuration soonest.

python benchmarks/tournament.py FILE... [--with NAME ...] [--seeds 20] [--into PAGE.md]

A strategy is `ours`, `grid`, `halving`, the name of an Optuna sampler (`tpe`, `gp`, `cmaes`, `random`), or
`FILE.py:CLASS` for one of your own (`recorded.strategies.Sampler`). The score is how long a user would have
waited for the trials, start-up and failures included, until the configuration that would be confirmed is
near the best.
"""

from __future__ import annotations

import common  # noqa: F401  (it puts on the path what the others import)
import typer
from recorded.tournament import main

if __name__ == "__main__":
    typer.run(main)
