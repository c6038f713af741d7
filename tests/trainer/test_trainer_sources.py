"""Sources for data larger than memory: parquet files and tar files, read in any order."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from sweeper import ParquetSource, Samples, ShardSource, Source, UserError
from sweeper.core.config import LoaderConfig
from sweeper.system import remote_data
from sweeper.trainer.data.order import Order
from sweeper.trainer.data.workers import WorkerLoader

COLUMNS = {"x": ["a", "b"], "y": ["c"]}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEPER_DATA_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    for part in range(2):
        rows = [part * 100 + row for row in range(100)]
        frame = pd.DataFrame({"a": rows, "b": [-each for each in rows], "c": [2 * each for each in rows]})
        frame.to_parquet(tmp_path / f"{part}.parquet", row_group_size=30)
    return tmp_path


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    for part in range(2):
        with tarfile.open(tmp_path / f"{part}.tar", "w") as tar:
            for number in range(5):
                for extension, content in (("cls", part * 5 + number), ("x.txt", 10 * number)):
                    member = tarfile.TarInfo(f"folder/{number:03}.{extension}")
                    text = str(content).encode()
                    member.size = len(text)
                    tar.addfile(member, io.BytesIO(text))
    return tmp_path


def decode(files: Mapping[str, bytes]) -> Mapping[str, Tensor]:
    return {"x": torch.tensor([float(files["x.txt"])]), "y": torch.tensor(int(files["cls"]))}


def test_rows_of_several_files_are_read_in_any_order(tables: Path):
    source = ParquetSource(tables, COLUMNS)
    assert isinstance(source, Source)
    assert len(source) == 200
    found = source.read(torch.tensor([150, 3]))
    assert found["x"].tolist() == [[150.0, -150.0], [3.0, -3.0]]
    assert found["y"].tolist() == [[300.0], [6.0]]
    assert Samples.of(source).length == 200


def test_rows_are_written_once_until_the_files_change(tables: Path, cache: Path):
    ParquetSource(tables, COLUMNS)
    (kept,) = cache.iterdir()
    before = (kept / "x.npy").stat().st_mtime_ns
    assert len(ParquetSource(tables, COLUMNS)) == 200
    assert (kept / "x.npy").stat().st_mtime_ns == before
    pd.DataFrame({"a": [1], "b": [2], "c": [3]}).to_parquet(tables / "2.parquet")
    assert len(ParquetSource(tables, COLUMNS)) == 201


def test_a_column_that_is_not_there_is_named(tables: Path, cache: Path):
    with pytest.raises(UserError, match=r"^/\S*0\.parquet must have the column 'z', but it has none"):
        ParquetSource(tables, {"x": ["z"]})
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("value", ["one", {"x": 1.0}, [1.0]])
def test_other_values_are_no_numbers(value: object, tmp_path: Path):
    pd.DataFrame({"a": [value]}).to_parquet(tmp_path / "words.parquet")
    with pytest.raises(UserError, match="must have parquet files of numbers, but"):
        ParquetSource(tmp_path / "words.parquet", {"x": ["a"]})


def test_nulls_are_refused_with_a_remedy(tables: Path, cache: Path):
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [1.0, None], "c": [1.0, 2.0]})
    frame.to_parquet(tables / "2.parquet")
    said = r"^/\S*2\.parquet must have a value in each row of the column 'b', but has nulls\. Fill them"
    with pytest.raises(UserError, match=said):
        ParquetSource(tables, COLUMNS)
    assert list(cache.iterdir()) == []


def test_rows_need_room(tables: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    class Disk:
        f_bavail, f_frsize = 200 * 3 * 4, 1

    monkeypatch.setattr(remote_data.os, "statvfs", lambda folder: Disk)
    ParquetSource(tables, COLUMNS)
    with pytest.raises(UserError, match=r"needs 0.0 MiB, but .* Set \$SWEEPER_DATA_CACHE to a folder"):
        ParquetSource(tables, COLUMNS, "float64")
    assert len(list(cache.iterdir())) == 1


def test_samples_of_several_tar_files_are_read_in_any_order(shards: Path):
    source = ShardSource(shards, decode)
    assert isinstance(source, Source)
    assert len(source) == 10
    found = source.read(torch.tensor([7, 0, 9]))
    assert found["y"].tolist() == [7, 0, 9]
    assert found["x"].tolist() == [[20.0], [0.0], [40.0]]


# More workers than cores, on a machine with one.
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_read_from_tar_files_of_their_own(shards: Path):
    source = ShardSource(shards, decode)
    source.read(torch.tensor([0]))
    loader = torch.utils.data.DataLoader(
        range(10),  # type: ignore[arg-type]
        batch_size=5,
        num_workers=2,
        collate_fn=lambda index: source.read(torch.tensor(index)),
    )
    assert [batch["y"].tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_a_source_reaches_a_worker_as_the_files_that_it_maps(tables: Path):
    """As a worker that is spawned gets it: rows in shared memory would be a copy of all data."""
    source = ParquetSource(tables, COLUMNS)
    sent = ForkingPickler.dumps(Samples.of(source))
    assert not any(array.is_shared() for array in source._arrays.values())
    samples = ForkingPickler.loads(sent)
    assert samples.length == 200
    found = samples.read(samples.tensors, torch.tensor([150, 3]), 0)
    assert found["x"].tolist() == [[150.0, -150.0], [3.0, -3.0]]


def five_batches(source: Source, method: Any) -> list[list[float]]:
    samples = Samples.of(source, torch.arange(len(source)))
    order = Order(samples.length, samples.length // 5, 0)
    config = LoaderConfig(kind="workers", num_workers=1, start_method=method)
    loader = WorkerLoader(samples, order, config, torch.device("cpu"))
    loader.start()
    found = [loader.next().batch["y"].flatten().tolist() for _ in range(5)]
    loader.close()
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_that_are_spawned_read_the_same_batches(tables: Path, shards: Path):
    for source in (ParquetSource(tables, COLUMNS), ShardSource(shards, decode)):
        spawned = five_batches(source, "spawn")
        assert spawned == five_batches(source, "fork")
        assert len({value for batch in spawned for value in batch}) == len(source)


def test_a_compressed_tar_file_is_refused_with_a_remedy(tmp_path: Path):
    with tarfile.open(tmp_path / "a.tar", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("x"))
    with pytest.raises(UserError, match="must be a tar file that is not compressed"):
        ShardSource(tmp_path, decode)


def test_a_folder_of_compressed_tar_files_is_refused_with_a_remedy(tmp_path: Path):
    (tmp_path / "a.tar.gz").touch()
    with pytest.raises(UserError, match=r"must have \.tar files, but got .*has \.tar\.gz files.*`gunzip`"):
        ShardSource(tmp_path, decode)


@pytest.mark.parametrize("kind", [ParquetSource, ShardSource])
def test_a_folder_without_data_is_named(kind: type, tmp_path: Path):
    with pytest.raises(UserError, match=r"`data.path` must have \.(parquet|tar) files, but got"):
        kind(tmp_path / "none", {})
