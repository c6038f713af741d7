"""Whether the pipelines learn from real data: one figure per training, some with a bar.

python benchmarks/real.py [NAME ...]        adds to benchmarks/results/<device>/guides.json

The data is in `shared/data` next to the repository; tasks without data are skipped. sweeper's own code
trains a task from each of its seeds, and the figure is the median over them.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import Figure, chosen, publish, spread

from sweeper.core.codec import decode
from sweeper.core.config import TrialConfig
from sweeper.core.job import Job, MeasurePlan
from sweeper.core.measurement import Quality
from sweeper.core.progress import SilentProgress
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
        samples: Training samples until it is evaluated.
        figure: Takes one number from the quality pass.
        bar: As in `common.Figure`; empty if there is none.
    """

    pipeline: str
    path: str
    samples: int
    figure: Callable[[Quality], float]
    data: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    bar: str = ""
    seeds: Sequence[int] = (0, 1, 2, 3, 4)


# Chosen on the validation parts; the figures are of the test parts. They are errors over that of the last
# value (sequence), and over that of one constant for all days or of one for each stock (stocks).
SEQUENCE = {
    "batch_size": 128,
    "optimizer.lr": 5e-4,
    "model.kind": "bilstm_attention",
    "model.num_layers": 1,
    "model.dropout": 0.3,
}
STOCKS = {"batch_size": 256, "model.hidden_size": 32, "model.num_layers": 1, "data.seq_length": 30}
SIGNS = {
    "batch_size": 16,
    "optimizer.lr": 3e-3,
    "optimizer.weight_decay": 0.1,
    "loader.buckets": 4,
    "model.num_layers": 1,
    "model.dropout": 0.3,
}

LETTERS = {"step_frames": 2, "clips": 4000}

TASKS: Mapping[str, Task] = {
    "behaviour-basicmotions": Task(
        pipeline="pipelines.behaviour",
        path="basicmotions/basicmotions.npz",
        config={"model.hidden_size": 48, "batch_size": 8, "optimizer.weight_decay": 1e-4},
        samples=2_000,
        figure=lambda told: told.metrics["accuracy"],
        bar=">= 0.95",
    ),
    "sequence-etth1": Task(
        pipeline="pipelines.sequence",
        path="etth1/ETTh1.csv",
        data={"split": "12/4/4", "evaluate_on": "test"},
        config=SEQUENCE,
        samples=50_000,
        figure=lambda told: told.metrics["mse_over_last_value"],
        bar="<= 0.7",
    ),
    "sequence-etth1-ot": Task(
        pipeline="pipelines.sequence",
        path="etth1/ETTh1.csv",
        data={"split": "12/4/4", "evaluate_on": "test", "target": "OT"},
        config=SEQUENCE,
        samples=50_000,
        figure=lambda told: told.metrics["mse_over_last_value"],
    ),
    "stocks-volatility": Task(
        pipeline="pipelines.stocks",
        path="stock_bars/bars",
        data={"evaluate_on": "test"},
        config=STOCKS,
        samples=80_000,
        figure=lambda told: told.val_loss / (told.constant_loss or 1.0),
        bar="<= 0.8",
    ),
    "stocks-volatility-own-mean": Task(
        pipeline="pipelines.stocks",
        path="stock_bars/bars",
        data={"evaluate_on": "test"},
        config=STOCKS,
        samples=80_000,
        figure=lambda told: told.metrics["mse_over_own_mean"],
    ),
    # Words of 2 to 6 letters, spelled from the last fifth of each take. The second recorder's ids seem to
    # stand for other letters: the first recorder's nearest shape is right for 0.4%, by chance it would be
    # 10%. So each letter has two shapes, and nothing carries over between recorders.
    "sign-language-letters": Task(
        pipeline="pipelines.sign_language",
        path="asl_letters/asl_letters.npz",
        data=LETTERS,
        config=SIGNS,
        samples=8_000,
        figure=lambda told: told.metrics["error_rate"],
        bar="<= 0.1",
    ),
    "sign-language-letters-one-recorder": Task(
        pipeline="pipelines.sign_language",
        path="asl_letters/asl_letters.npz",
        data={**LETTERS, "recorder": 0},
        config=SIGNS,
        samples=8_000,
        figure=lambda told: told.metrics["error_rate"],
    ),
    "sign-language-letters-across-recorders": Task(
        pipeline="pipelines.sign_language",
        path="asl_letters/asl_letters.npz",
        data={**LETTERS, "split": "recorder"},
        config=SIGNS,
        samples=8_000,
        figure=lambda told: told.metrics["error_rate"],
        seeds=(0,),
    ),
    "stocks-return": Task(
        pipeline="pipelines.stocks",
        path="stock_bars/bars",
        data={"evaluate_on": "test", "target": "return"},
        config=STOCKS,
        samples=80_000,
        figure=lambda told: told.val_loss / (told.constant_loss or 1.0),
    ),
}


def train(task: Task) -> list[Quality]:
    """Returns the result of the quality pass for each seed."""
    with tempfile.TemporaryDirectory() as name:
        job = Job(
            uid="real",
            pipeline=task.pipeline,
            import_paths=(str(REPOSITORY),),
            data={"path": str(DATA / task.path), **task.data},
            prepared=str(Path(name) / "prepared"),
            plan=MeasurePlan(quality_samples=task.samples),
        )
        prepare.run(job, SilentProgress())
        return [_trained(job, task, seed) for seed in task.seeds]


def _trained(job: Job, task: Task, seed: int) -> Quality:
    config = TrialConfig().replace({"device.cpu_threads": 1, **task.config, "seed": seed})
    report = quality.run(dataclasses.replace(job, config=config), SilentProgress())
    return decode(Quality, report.values)


def main() -> None:
    """Trains the named tasks, or all of them, and publishes their figures."""
    figures = []
    for name, task in chosen(TASKS).items():
        if not (DATA / task.path).exists():
            print(f"{name}: {DATA / task.path} is not there")
            continue
        told = train(task)
        values = [task.figure(run) for run in told]
        seconds = sum(run.seconds for run in told)
        print(f"{name}: {', '.join(f'{value:.4g}' for value in values)} in {seconds:.0f} s", flush=True)
        figure = spread(values)
        figures.append(
            Figure(
                figure=f"real: {name}",
                value=figure.value,
                low=figure.low,
                high=figure.high,
                bar=task.bar,
                repeats=len(values),
            )
        )
    publish("guides", figures, "python benchmarks/real.py")


if __name__ == "__main__":
    main()
