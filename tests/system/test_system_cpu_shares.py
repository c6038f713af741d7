"""Shares of cores: on machines that /sys describes, each slot's own, whole, near and equal."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

import pytest

from sweeper.system import cpu_shares
from sweeper.system.cpu_shares import shares


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Makes a machine: the cores this process may use, where they are by /sys, how many a quota leaves."""

    def make(
        usable: Iterable[int],
        siblings: Mapping[int, str] | None = None,
        sockets: Mapping[int, int] | None = None,
        quota: int = 999,
    ) -> None:
        usable = set(usable)
        for core, text in (siblings or {}).items():
            (tmp_path / f"cpu{core}" / "topology").mkdir(parents=True, exist_ok=True)
            (tmp_path / f"cpu{core}" / "topology" / "thread_siblings_list").write_text(f"{text}\n")
        for core, socket in (sockets or {}).items():
            (tmp_path / f"cpu{core}" / "topology").mkdir(parents=True, exist_ok=True)
            (tmp_path / f"cpu{core}" / "topology" / "physical_package_id").write_text(f"{socket}\n")
        monkeypatch.setattr(cpu_shares, "TOPOLOGY", tmp_path)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: usable)
        monkeypatch.setattr(cpu_shares, "usable_cpus", lambda: min(quota, len(usable)))

    return make


def untold(slots: int) -> list[tuple[int, ...]]:
    return shares([()] * slots)


def test_neighbours_share_no_physical_core_while_there_are_enough(machine):
    machine(range(8), {core: f"{core % 4},{core % 4 + 4}" for core in range(8)})
    assert untold(2) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert untold(4) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    # Three of the four, so that none has more than another.
    assert untold(3) == [(0, 4), (1, 5), (2, 6)]
    # Too few physical ones: logical ones, and then one for several.
    assert untold(5) == [(0,), (1,), (2,), (3,), (4,)]
    assert untold(9)[7:] == [(7,), (0,)]


def test_siblings_may_be_a_range_and_only_usable_ones_count(machine):
    machine([2, 3, 4, 9], {2: "2-3", 3: "2-3", 4: "4-5", 9: "8-9"})
    assert cpu_shares.physical_cores([2, 3, 4, 9]) == [(2, 3), (4,), (9,)]
    # As many for each.
    assert untold(2) == [(2,), (4,)]


@pytest.mark.parametrize("told", ["", "nonsense", "-1"])
def test_a_machine_that_does_not_describe_its_cores_has_no_threads(machine, told):
    machine(range(4), dict.fromkeys(range(4), told), dict.fromkeys(range(4), "-1"))
    assert untold(2) == [(0, 1), (2, 3)]


def test_sockets_are_not_cut_where_that_can_be_helped(machine):
    # Numbered in turn, as some boards do.
    machine(range(8), sockets={core: core % 2 for core in range(8)})
    assert untold(2) == [(0, 2, 4, 6), (1, 3, 5, 7)]


NEAR_0, NEAR_1 = frozenset(range(8)), frozenset(range(8, 16))


def test_a_slot_is_near_its_gpu_and_those_near_the_same_cores_share_them(machine):
    machine(range(16))
    assert shares([NEAR_1, NEAR_0]) == [tuple(range(8, 16)), tuple(range(8))]
    assert shares([NEAR_1, NEAR_0, NEAR_1, NEAR_0]) == [
        *[(8, 9, 10, 11), (0, 1, 2, 3)],
        *[(12, 13, 14, 15), (4, 5, 6, 7)],
    ]
    # No slot has more than another: a trial would be faster there.
    assert shares([NEAR_1, NEAR_0, NEAR_0]) == [(8, 9, 10, 11), (0, 1, 2, 3), (4, 5, 6, 7)]
    assert shares([NEAR_0, NEAR_0]) == [(0, 1, 2, 3), (4, 5, 6, 7)]


@pytest.mark.parametrize(
    "near",
    [
        [NEAR_0, ()],
        [frozenset(range(4, 12)), NEAR_1],
        # Cores that this process may not use.
        [NEAR_0, {99}],
        # So few that each slot would lose more than half.
        [{0, 1, 2}, NEAR_1],
        [NEAR_0, {9}],
    ],
)
def test_what_is_told_in_part_or_leaves_too_little_counts_for_none(machine, near):
    machine(range(16))
    assert shares(near) == [tuple(range(8)), tuple(range(8, 16))]


def test_a_quota_is_shared_on_physical_cores_first(machine):
    siblings = {core: f"{core % 8},{core % 8 + 8}" for core in range(16)}
    machine(range(16), siblings, quota=4)
    assert untold(2) == [(0, 1), (4, 5)]
    machine(range(16), siblings, quota=12)
    assert untold(2) == [(0, 1, 2, 3, 8, 9), (4, 5, 6, 7, 12, 13)]
    machine(range(16), siblings, quota=1)
    assert untold(2) == [(0,), (4,)]


@pytest.mark.parametrize("usable", [1, 2, 3, 7, 12, 64])
@pytest.mark.parametrize("slots", [2, 3, 5, 8])
def test_shares_are_equal_usable_and_apart(machine, usable, slots):
    machine(range(100, 100 + usable), {core: f"{core}-{core + 1}" for core in range(100, 164, 2)})
    found = untold(slots)
    assert len(found) == slots
    assert len({len(share) for share in found}) == 1
    assert all(share and set(share) <= set(range(100, 100 + usable)) for share in found)
    taken = [core for share in found for core in share]
    assert len(set(taken)) == (len(taken) if usable >= slots else usable)
