"""`python -m sweeper.worker DIR` runs the job in DIR; `--probe` prints what this device can do."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from sweeper.core.codec import encode
from sweeper.core.job import PROBE_RUNNER, Job, MeasurePlan, read_outcome, write_job
from sweeper.worker.keeper import keep


def main(arguments: list[str]) -> int:
    """Runs one job, or the probe; returns the exit status."""
    if len(arguments) != 1 or arguments[0] in ("-h", "--help"):
        print("usage: python -m sweeper.worker DIR | --probe", file=sys.stderr)
        return 2
    if arguments[0] != "--probe":
        keep(Path(arguments[0]))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        plan = MeasurePlan(repeats=0)
        write_job(Path(folder), Job(uid="probe", runner=PROBE_RUNNER, device="auto", plan=plan))
        keep(Path(folder))
        print(json.dumps(encode(read_outcome(Path(folder))), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
