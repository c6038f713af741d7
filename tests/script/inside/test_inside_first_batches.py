"""What the first batches of a training show: padding, rows that come twice, workers without work."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hearing import run
from parts.noop import synthetic

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Diagnosis
from sweeper.results.trial_card import card

TRAIN = """
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

torch.manual_seed(0)

class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        shards = {shards}[worker.id :: worker.num_workers] if {splits} else {shards}
        for shard in shards:
            generator = torch.Generator().manual_seed(shard)
            for _ in range(200):
                yield torch.randn(8, generator=generator), torch.ones(1)

def lengths(count=160, longest=32, pad=0):
    rows = torch.randint(1, 50, (count, longest))
    for number, row in enumerate(rows):
        row[8 + number % 24 :] = pad
    return rows

data = {data}
loader = DataLoader(data, batch_size=8, num_workers={workers}, collate_fn={collate})
model = torch.nn.Linear({width}, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for number, batch in enumerate(loader):
    x = batch["ids"] if isinstance(batch, dict) else batch[0]
    loss = model(x.float()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if number == 15:
        break
"""
MASKED = "lambda rows: {'ids': (ids := torch.stack([row[0] for row in rows])), 'attention_mask': ids > 9}"


def facts_of(tmp_path: Path, **parts: Any) -> dict[str, Any]:
    options = {"shards": "[0, 1, 2, 3]", "splits": True, "workers": 0, "collate": None, "width": 32, **parts}
    (tmp_path / "train.py").write_text(TRAIN.format(**options))
    done = run([sys.executable, str(tmp_path / "train.py")], folder=tmp_path)
    assert done.status == 0, done.errors
    facts: dict[str, Any] = done.last["facts"]
    return facts


def test_workers_without_a_shard_are_idle(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, data="Stream()", width=8, workers=3, shards="[7]")
    assert facts["idle_workers"] == 2
    assert "repeats_rows" not in facts


def test_a_stream_that_each_worker_reads_whole_gives_its_rows_twice(tmp_path: Path) -> None:
    assert facts_of(tmp_path, data="Stream()", width=8, workers=2, splits=False)["repeats_rows"] is True


def test_a_stream_that_is_split_wastes_nothing(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, data="Stream()", width=8, workers=2)
    assert not {"idle_workers", "repeats_rows", "padding_share"} & facts.keys()


@pytest.mark.parametrize("pad", [0, 63])
def test_the_share_of_padding_is_known(tmp_path: Path, pad: int) -> None:
    facts = facts_of(tmp_path, data=f"TensorDataset(lengths(pad={pad}))")
    # The first 24 rows have 8 to 31 of 32 columns, the next 8 have 8 to 15.
    assert facts["padding_share"] == pytest.approx(1 - 17.5 / 32, abs=0.02)


def test_a_mask_says_what_is_padding(tmp_path: Path) -> None:
    data = "TensorDataset(torch.arange(160 * 20).reshape(160, 20) % 20)"
    facts = facts_of(tmp_path, data=data, collate=MASKED, width=20)
    assert facts["padding_share"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    "data",
    [
        "TensorDataset(torch.randint(0, 2, (160, 32)))",
        "TensorDataset(torch.randint(0, 50, (160, 32)))",
        "TensorDataset(torch.ones(160, 32, dtype=torch.int64).cumsum(1))",
        "TensorDataset(torch.randn(160, 32))",
    ],
)
def test_tables_and_full_rows_have_no_padding(tmp_path: Path, data: str) -> None:
    assert "padding_share" not in facts_of(tmp_path, data=data)


def test_the_card_says_what_is_wasted() -> None:
    observed = dict(num_workers=4, idle_workers=3, repeats_rows=True, padding_share=0.4, collector_share=0.3)
    measured = dataclasses.replace(synthetic(100.0), observed=observed, diagnosis=Diagnosis(usable_cpus=1))
    lines = list(card(measured, TrialConfig(args={})))
    assert "3 of 4 workers have nothing to read: the stream has fewer shards than workers" in lines
    assert any(line.startswith("rows come twice: each worker reads the whole stream") for line in lines)
    assert "40% of a batch is padding: batch rows of similar lengths" in lines
    assert any(line.startswith("4 workers share one core, which is all") for line in lines)
    assert any(line.startswith("Python looks for garbage 30% of the time") for line in lines)
    (window,) = measured.windows
    shared = dataclasses.replace(window, foreign_cpu_seconds=0.9 * window.seconds)
    busy = dataclasses.replace(measured, windows=(shared,), observed={"threads": 2})
    assert any("keep 0.9 cores busy, and the 2 threads" in line for line in card(busy, TrialConfig(args={})))
    clean = dataclasses.replace(measured, observed={"num_workers": 1, "collector_share": 0.019})
    waste = re.compile("worker|padding|garbage")
    assert not [line for line in card(clean, TrialConfig(args={})) if waste.search(line)]
