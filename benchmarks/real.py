"""Whether the pipelines learn from real data: the training of each, a bar or none beside it.

python benchmarks/real.py [NAME ...]        adds to benchmarks/results/<device>/guides.json

The data lies in `shared/data` beside the repository; what is not there is passed over. A task is
trained by the product's own code from each of its seeds, and the figure is the median over them.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import Figure, publish, spread

from sweeper.core.codec import decode
from sweeper.core.config import TrialConfig
from sweeper.core.job import Job, MeasurePlan
from sweeper.core.measurement import Quality
from sweeper.core.progress import Silent
from sweeper.trainer import prepare, quality

REPOSITORY = Path(__file__).parents[1]
DATA = REPOSITORY.parent / "shared" / "data"


@dataclass(frozen=True, kw_only=True)
class Task:
    """One training on real data.

    Attributes:
        pipeline: Its module.
        path: Below `shared/data`.
        data: The other options of the data.
        config: Fields of TrialConfig.
        samples: Training samples until it is looked at.
        figure: Takes the one number from the quality pass.
        bar: As in `common.Figure`; empty where none is asked for.
    """

    pipeline: str
    path: str
    samples: int
    figure: Callable[[Quality], float]
    data: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    bar: str = ""
    seeds: Sequence[int] = (0, 1, 2, 3, 4)


TASKS: Mapping[str, Task] = {}


def train(task: Task) -> list[Quality]:
    """Returns what the quality pass tells of each seed."""
    with tempfile.TemporaryDirectory() as name:
        job = Job(
            uid="real",
            pipeline=task.pipeline,
            import_paths=(str(REPOSITORY),),
            data={"path": str(DATA / task.path), **task.data},
            prepared=str(Path(name) / "prepared"),
            plan=MeasurePlan(quality_samples=task.samples),
        )
        prepare.run(job, Silent())
        return [_trained(job, task, seed) for seed in task.seeds]


def _trained(job: Job, task: Task, seed: int) -> Quality:
    config = TrialConfig().replace({"device.cpu_threads": 1, **task.config, "seed": seed})
    report = quality.run(dataclasses.replace(job, config=config), Silent())
    return decode(Quality, report.values)


def main(names: Iterable[str]) -> None:
    """Trains the tasks `names`, or all of them, and publishes their figures."""
    figures = []
    for name in names or TASKS:
        task = TASKS[name]
        if not (DATA / task.path).exists():
            print(f"{name}: {DATA / task.path} is not there")
            continue
        told = train(task)
        values = [task.figure(each) for each in told]
        seconds = sum(each.seconds for each in told)
        print(f"{name}: {', '.join(f'{value:.4g}' for value in values)} in {seconds:.0f} s", flush=True)
        found = spread(values)
        figures.append(
            Figure(
                figure=f"real: {name}",
                value=found.value,
                low=found.low,
                high=found.high,
                bar=task.bar,
                repeats=len(values),
            )
        )
    publish("guides", figures, "python benchmarks/real.py")


if __name__ == "__main__":
    main(sys.argv[1:])
