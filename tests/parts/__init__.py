"""Provides jobs, pipelines and a launcher for tests and benchmarks.

A trial finds a pipeline by `Job.import_paths`, and a runner by PYTHONPATH: both need `FOLDER`.
"""

from pathlib import Path

FOLDER = str(Path(__file__).parents[1])
