"""Divides the machine's cores among slots: whole physical cores, near each slot's GPU."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from sweeper.system.cpu import usable_cpus

TOPOLOGY = Path("/sys/devices/system/cpu")

Unit = tuple[int, ...]
"""Logical cores that go to one slot together."""


def shares(near: Sequence[Collection[int]]) -> list[tuple[int, ...]]:
    """Returns the logical cores of each slot, the same number for every slot.

    A trial then measures the same on every slot. Slots share a physical core only if there are too few.
    A CPU quota is divided evenly and spent on separate physical cores before sibling threads.

    Args:
        near: For each slot, the cores near its GPU as the driver reports them; empty if unknown. Used
            only if known for every slot, in sets that are equal or do not overlap, and if each slot
            then has at least half the cores it would have otherwise.
    """
    usable = sorted(os.sched_getaffinity(0))
    everywhere = [frozenset(usable)] * len(near)
    sets = [frozenset(usable).intersection(cores) for cores in near]
    if not all(sets) or sum(map(len, set(sets))) > len(frozenset().union(*sets)):
        sets = everywhere
    max_cores = max(1, usable_cpus() // len(near))
    for units in (physical_cores(usable), [(core,) for core in usable]):
        even, dealt = _deal(units, everywhere), _deal(units, sets)
        if all(even):
            near_enough = 2 * len(dealt[0]) >= len(even[0])
            chosen = [_in_order(share) for share in (dealt if near_enough else even)]
            max_cores = min(max_cores, *map(len, chosen))
            return [tuple(sorted(share[:max_cores])) for share in chosen]
    return [(usable[i % len(usable)],) for i in range(len(near))]


def physical_cores(usable: Sequence[int]) -> list[Unit]:
    """Returns the logical cores grouped by physical core, socket by socket."""
    units: dict[tuple[int, Unit], None] = {}
    for core in usable:
        place = TOPOLOGY / f"cpu{core}" / "topology"
        socket = numbers(place / "physical_package_id") or [0]
        siblings = {core, *numbers(place / "thread_siblings_list")}.intersection(usable)
        units[socket[0], tuple(sorted(siblings))] = None
    return [unit for _, unit in sorted(units)]


def _deal(units: Sequence[Unit], sets: Sequence[frozenset[int]]) -> list[list[Unit]]:
    """Returns neighbouring units from each slot's set, the same number per slot; none if too few."""
    rooms = {cores: [unit for unit in units if cores.issuperset(unit)] for cores in sets}
    size = min(len(rooms[cores]) // count for cores, count in Counter(sets).items())
    offsets: Counter[frozenset[int]] = Counter()
    dealt = []
    for cores in sets:
        dealt.append(rooms[cores][offsets[cores] : offsets[cores] + size])
        offsets[cores] += size
    return dealt


def _in_order(units: Sequence[Unit]) -> list[int]:
    """Returns the logical cores of a share, one of each physical core before a second of any."""
    return [core for _, core in sorted((rank, core) for unit in units for rank, core in enumerate(unit))]


def numbers(path: Path) -> list[int]:
    """Returns the numbers of a list such as `0,32-33`; none if it cannot be read."""
    try:
        parts = path.read_text(encoding="ascii").strip().split(",")
        ends = [tuple(map(int, part.split("-"))) for part in parts]
    except (OSError, ValueError):
        return []
    return [number for end in ends for number in range(end[0], end[-1] + 1)]
