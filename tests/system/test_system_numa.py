"""Memory nodes: which cores belong to each, and staying on one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sweeper.system.numa import bind, node_of_gpu, node_of_process, nodes


@pytest.fixture
def two(tmp_path: Path) -> Path:
    for node, cores in ((0, "0-3,8"), (1, "4-7"), (2, "")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cores}\n")
    (tmp_path / "has_cpu").write_text("0-1\n")
    return tmp_path


def test_each_node_has_its_cores(two: Path):
    assert nodes(two) == {0: {0, 1, 2, 3, 8}, 1: {4, 5, 6, 7}}


def test_a_gpus_node_is_read_from_its_bus(tmp_path: Path):
    folder = tmp_path / "0000:3b:00.0"
    folder.mkdir()
    (folder / "numa_node").write_text("1\n")
    assert node_of_gpu("00000000:3B:00.0", tmp_path) == 1
    (folder / "numa_node").write_text("-1\n")
    assert node_of_gpu("00000000:3B:00.0", tmp_path) is None
    assert node_of_gpu("00000000:5E:00.0", tmp_path) is None


def test_the_own_node_has_most_of_the_usable_cores(monkeypatch: pytest.MonkeyPatch, two: Path):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 4, 5})
    assert node_of_process(nodes(two)) == 1


def test_a_process_stays_on_the_cores_of_its_node():
    mine = sorted(os.sched_getaffinity(0))
    code = (
        "import os; from sweeper.system.numa import bind; "
        f"bind(0, {{0: frozenset([{mine[0]}, 100000])}}); print(sorted(os.sched_getaffinity(0)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(mine[:1])


@pytest.mark.parametrize("node", [0, 1], ids=["of others", "without cores"])
def test_without_a_usable_core_it_is_refused(node: int):
    with pytest.raises(OSError, match=f"this process may use no core of node {node}"):
        bind(node, {0: frozenset([100_000])})
