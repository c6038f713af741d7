"""Passes that are cut short for a record: about as many rows each, and later ones as they would have been."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hearing import run
from torch.utils.data import DataLoader

from sweeper.script.inside.points import Points
from sweeper.script.inside.seeding import MAX_LEFT_OUT, MIN_BATCHES, cut_passes

NUM_BATCHES = 8


@contextmanager
def cut(num_batches: int = NUM_BATCHES) -> Iterator[None]:
    points = Points(lambda _: None)
    cut_passes(torch, points, num_batches, lambda iterator: True)
    try:
        yield
    finally:
        points.fail(RuntimeError("the test is over"))


def loader(size: int, num_rows: int = 4000) -> DataLoader[Any]:
    return DataLoader(range(num_rows), batch_size=size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("size", "num_batches"), [(10, NUM_BATCHES), (5, NUM_BATCHES), (20, 4), (30, 2), (1000, MIN_BATCHES)]
)
def test_a_loader_with_larger_batches_is_cut_to_about_as_many_rows(size: int, num_batches: int) -> None:
    with cut():
        assert len(list(loader(10))) == NUM_BATCHES
        assert len(list(loader(size))) == num_batches


def test_the_last_batch_is_kept_and_a_short_pass_is_whole() -> None:
    with cut():
        assert [len(each) for each in loader(10, num_rows=104)] == [10] * (NUM_BATCHES - 1) + [4]
        assert len(list(loader(10, num_rows=30))) == 3


class Endless:
    """A batch sampler that never ends."""

    def __init__(self) -> None:
        self.num_asked = 0

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            self.num_asked += 1
            yield [self.num_asked % 100]


class SaysSo(Endless):
    """One that claims so many batches that nobody sees its end."""

    def __len__(self) -> int:
        return 10**10


class CannotSay(Endless):
    """One whose length raises an error of its own."""

    def __len__(self) -> int:
        raise ValueError("never")


@pytest.mark.parametrize(
    ("kind", "num_left_out"), [(SaysSo, 0), (Endless, MAX_LEFT_OUT), (CannotSay, MAX_LEFT_OUT)]
)
def test_a_pass_that_never_ends_is_not_cut(kind: type[Endless], num_left_out: int) -> None:
    sampler = kind()
    with cut():
        batches = iter(DataLoader(range(100), batch_sampler=sampler))  # type: ignore[arg-type]
        assert len([next(batches) for _ in range(3 * NUM_BATCHES)]) == 3 * NUM_BATCHES
    assert sampler.num_asked == 3 * NUM_BATCHES + num_left_out


class Drawing:
    """A batch sampler that draws for each batch anew, as curricula do."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(20):
            yield torch.randint(0, 100, (4,)).tolist()


def test_a_later_pass_has_the_order_that_it_would_have_had() -> None:
    def second_pass(num_batches: int) -> list[Any]:
        torch.manual_seed(0)
        with cut(num_batches):
            among = DataLoader(range(100), batch_sampler=Drawing())  # type: ignore[arg-type]
            list(among)
            return [each.tolist() for each in among]

    assert second_pass(5)[:4] == second_pass(1000)[:4]


HELD = """
import os
import torch
from sweeper.script.inside.seeding import seed

seed(torch, 0, 0, deterministic=True)
torch.backends.cudnn.benchmark = True
assert not torch.backends.cudnn.benchmark
with torch.backends.cudnn.flags(benchmark=True):
    assert not torch._C._get_cudnn_benchmark()
assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
assert torch.are_deterministic_algorithms_enabled()
print("held")
"""


def test_a_script_cannot_turn_cudnns_search_on_where_its_runs_must_repeat_themselves() -> None:
    found = run([sys.executable, "-c", HELD], {"PYTHONPATH": str(Path(__file__).parents[3])})
    assert (found.status, found.output) == (0, "held\n"), found.errors


RECURRENT = """
import torch
model = torch.nn.{layer}
torch.backends.cudnn.benchmark = {search}
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(60):
    x = torch.randn(5, 2, 3)
    y = model(x)
    loss = (y[0] if isinstance(y, tuple) else y).square().mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("layer", "recurs"), [("GRU(3, 4)", True), ("Linear(3, 4)", False)])
def test_it_is_known_what_recurs_and_what_the_script_has_set(
    layer: str, recurs: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(RECURRENT.format(layer=layer, search=recurs))
    found = run([sys.executable, "train.py"], folder=tmp_path)
    *_, facts = [message["facts"] for message in found.messages if "facts" in message]
    assert (facts["recurs"], facts["cudnn_search"], facts["tf32"]) == (recurs, recurs, False)


@pytest.mark.parametrize("made", ["default_rng()", "RandomState(SeedSequence().generate_state(4))"])
def test_a_generator_that_is_made_without_a_seed_has_that_of_the_run(made: str) -> None:
    code = (
        "import torch\nfrom numpy.random import RandomState, SeedSequence, default_rng\n"
        "from sweeper.script.inside.seeding import seed\n"
        "for number, shift in ((7, 0), (7, 0), (7, 1000)):\n"
        "    seed(torch, number, shift)\n"
        f"    print(*({made}.random() for _ in range(2)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, again, other = done.stdout.splitlines()
    assert first == again != other
    assert len({*first.split()}) == 2
