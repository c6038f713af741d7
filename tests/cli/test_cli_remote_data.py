"""A sweep and a production run whose data lies in a bucket or behind a web address."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from services import s3, web

SPACE = """
name: remote
pipeline: pipelines.tabular
data: {{path: "{path}", target: y}}
space:
  batch_size: {{type: categorical, choices: [64, 256]}}
baseline: {{batch_size: 64, loader.kind: rows, loader.num_workers: 0}}
fix: {{model.hidden_size: 8, loader.kind: {kind}}}
measure: {{window_seconds: 0.1, repeats: 1, quality_samples: 0, warmup_cap_seconds: 0.5, trace: false}}
search: {{trials: 1, minutes: null}}
confirm: {{rounds: 0}}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEPER_DATA_CACHE", str(tmp_path / "copies"))
    return tmp_path / "copies"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(draw.standard_normal((4000, 4)), columns=["a", "b", "c", "y"])
    path = tmp_path / "rows.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture
def served(rows: Path) -> Iterator[str]:
    with web.served(rows.parent) as address:
        yield f"{address}/rows.csv"


@pytest.fixture
def bucket(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if not s3.is_installed():
        pytest.skip("needs s3fs and moto[server]")
    with s3.served(tmp_path) as env:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        import s3fs

        system = s3fs.S3FileSystem(endpoint_url=env["AWS_ENDPOINT_URL"])
        system.mkdir("bucket")
        system.put(str(rows), "bucket/data/rows.csv")
        yield "s3://bucket/data/rows.csv"


def swept(sweeper, folder: Path, path: str, kind: str = "workers") -> str:
    (folder / "space.yaml").write_text(SPACE.format(path=path, kind=kind), encoding="utf-8")
    done = sweeper("run", "space.yaml", timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    text: str = done.stdout + done.stderr
    return text


@pytest.mark.slow
def test_data_behind_an_address_is_copied_once(sweeper, tmp_path: Path, served: str, cache: Path):
    said = swept(sweeper, tmp_path, served)
    assert f"Copying 0.3 MiB in 1 file from {served}, once." in said
    (copy,) = cache.rglob("rows.csv")
    assert copy.read_bytes() == (tmp_path / "rows.csv").read_bytes()
    sweep = json.loads((tmp_path / "mlruns/sweeps/remote/result.json").read_text())
    assert sweep
    # The specification keeps the address.
    assert served in (tmp_path / "mlruns/sweeps/remote/sweep.yaml").read_text()
    again = sweeper("check", "space.yaml", "--deep", timeout=200)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "Copying" not in again.stdout + again.stderr


@pytest.mark.soak
def test_data_in_a_bucket_is_trained_on_without_credentials(
    bucket: str, sweeper, tmp_path: Path, cache: Path
):
    said = swept(sweeper, tmp_path, bucket, "stream")
    assert f"from {bucket}, once." in said
    assert len(list(cache.rglob("rows.csv"))) == 1
    for log in (tmp_path / "mlruns/sweeps/remote").rglob("config.json"):
        assert "testing" not in log.read_text(encoding="utf-8")
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "testing"
