"""Whether training on data from a bucket is as fast as from the disk, once the data has been copied.

python benchmarks/remote.py       writes benchmarks/results/<device>/remote.json

3 GiB of numbers in parquet files are in a bucket of a local S3 server (moto), and on the disk. An MLP trains
on both through `ParquetSource` and the loader `stream`, in turns. This needs 15 GiB of disk.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Figure, publish, spread
from torch import nn
from verdicts import SHORT, Bench

from sweeper import ParquetSource, Pipeline, Samples, TrialConfig
from sweeper.core.measurement import Measurement
from sweeper.schema.data_path import on_this_machine

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from services import s3  # noqa: E402

FEATURES, ROWS, FILES = 63, 1_048_576, 12
"""With the target, 256 bytes a row: 3 GiB in all."""
ROUNDS = 10
CONFIG = {"loader.kind": "stream", "loader.num_workers": 0, "batch_size": 4096}


def prepare(data: Mapping[str, Any]) -> ParquetSource:
    """Returns the rows."""
    return ParquetSource(data["path"], {"x": [f"x{i}" for i in range(FEATURES)], "y": ["y"]})


def build(config: TrialConfig, source: ParquetSource) -> Pipeline:
    """Returns an MLP."""
    samples = Samples.of(source)
    model = nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 1))

    def loss(model: nn.Module, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return nn.functional.mse_loss(model(batch["x"]), batch["y"])

    return Pipeline(model=model, train=samples, val=samples, loss=loss)


def write(folder: Path) -> None:
    """Writes the files."""
    import pyarrow as pa
    from pyarrow.parquet import write_table

    draw = np.random.default_rng(0)
    for number in range(FILES):
        columns = {f"x{i}": draw.random(ROWS, dtype=np.float32) for i in range(FEATURES)}
        columns["y"] = columns["x0"] + columns["x1"]
        write_table(pa.table(columns), folder / f"{number}.parquet", compression="none", use_dictionary=False)


def _once(what: str, value: float, unit: str, bar: str = "") -> Figure:
    return Figure(figure=what, value=value, low=value, high=value, bar=bar, unit=unit, repeats=1)


def main() -> None:
    """Copies, trains and publishes."""
    with tempfile.TemporaryDirectory(prefix="sweeper-remote-") as name, s3.served(Path(name)) as env:
        folder = Path(name)
        os.environ.update(env, SWEEPER_DATA_CACHE=str(folder / "copies"))
        disk = folder / "disk"
        disk.mkdir()
        write(disk)
        import s3fs

        system = s3fs.S3FileSystem(endpoint_url=env["AWS_ENDPOINT_URL"])
        system.mkdir("bucket")
        system.put(str(disk), "bucket/rows", recursive=True)
        began = time.monotonic()
        copied = on_this_machine({"path": "s3://bucket/rows"}, print)
        seconds = time.monotonic() - began
        size = sum(path.stat().st_size for path in disk.iterdir()) / 2**30
        figures = [
            Figure(
                figure="in the bucket", value=size, low=size, high=size, bar=">= 3", unit="GiB", repeats=1
            ),
            Figure(figure="copying it, once", value=seconds, low=seconds, high=seconds, unit="s", repeats=1),
        ]
        bench = Bench(folder)
        places = {"bucket": str(copied["path"]), "disk": str(disk)}
        rates: dict[str, list[float]] = {place: [] for place in places}
        templates = {}
        for place, path in places.items():
            templates[place] = bench.prepared("remote", {"path": path})
        for turn in range(ROUNDS + 1):
            for place in list(places)[:: 1 if turn % 2 else -1]:
                outcome = bench.trial(templates[place], CONFIG, SHORT).outcome
                assert isinstance(outcome, Measurement), outcome
                rates[place].append(outcome.throughput)
        bench.launcher.close()
        # The first round reads data that later ones find in memory.
        ratios = [a / b for a, b in zip(rates["bucket"][1:], rates["disk"][1:], strict=True)]
        what = "stream: from the bucket / from the disk"
        figures.append(replace(spread(ratios), figure=what, bar=">= 0.95", unit="x", noisy=True))
        publish("remote", figures, "python benchmarks/remote.py")


if __name__ == "__main__":
    main()
