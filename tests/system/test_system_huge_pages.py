"""Tests huge pages, in processes of their own."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import mmap, re
from sweeper.system.huge_pages import use_huge_pages

def huge():
    return sum(int(kib) for kib in re.findall(r"AnonHugePages: +(\\d+) kB", open("/proc/self/smaps").read()))

memory = mmap.mmap(-1, 16 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
numbers = bytes(range(251)) * (len(memory) // 251)
memory[: len(numbers)] = numbers
before = huge()
use_huge_pages()
assert memory[: len(numbers)] == numbers
print(huge(), huge() - before)
"""


def kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])


@pytest.mark.skipif(kernel() < (6, 1), reason="needs Linux 6.1")
def test_memory_is_moved_and_stays_as_it_is() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    kib = int(done.stdout.split()[0])
    if kib == 0:
        pytest.skip("this kernel has no huge pages, or none is free")
    assert kib >= 8 << 10


def test_where_the_kernel_refuses_nothing_happens() -> None:
    refused = PROGRAM.replace(
        "before = huge()", "import sweeper.system.huge_pages as m; m._MADV_COLLAPSE = 999\nbefore = huge()"
    )
    done = subprocess.run([sys.executable, "-c", refused], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1] == "0"
