"""Changes that are made by environment variables alone, before the script starts."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from typing import Any

from .change import ARITHMETIC, CLOSE, EXACT, Change, Editor
from .facts import is_on_cpu, is_on_gpu, num_threads

RETAIN = {"MALLOC_MMAP_MAX_": 0, "MALLOC_TRIM_THRESHOLD_": 2**31 - 1, "MALLOC_TOP_PAD_": 2**26}
"""Variables of glibc, which then keeps freed memory for the next step."""
MALLOPT = {"MALLOC_MMAP_MAX_": -4, "MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_TOP_PAD_": -2}
"""Numbers of mallopt(3)'s parameters."""

ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Variables of torch's allocator: torch reads the first that is set. Every release reads the older one."""
EXPANDABLE = "expandable_segments:True"

SPIN_COUNT = {"GOMP_SPINCOUNT": "1000"}

HUGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
TUNABLES = "GLIBC_TUNABLES"


class _Environment(Change):
    """A change that environment variables make."""

    original = "default"

    def apply(self, torch: Any, value: str, report: Any) -> None:
        """Does nothing: the change was made before the process started."""
        report(True)


class Malloc(_Environment):
    """Makes the C library keep freed memory."""

    name = "device.malloc"
    choices = ("retain",)
    kind = EXACT
    why = "freed host memory is kept for the next step instead of being returned to the system"

    def environment(self, value: str, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Returns the variables of glibc."""
        return {name: str(number) for name, number in RETAIN.items()}

    def edit(self, editor: Editor) -> None:
        """Calls mallopt(3), which only glibc has."""
        calls = "".join(
            f"    libc.mallopt({MALLOPT[name]}, {value})  # M_{name[7:-1]}\n"
            for name, value in RETAIN.items()
        )
        head = 'libc = ctypes.CDLL(None) if sys.platform == "linux" else None\nif hasattr(libc, "mallopt"):\n'
        editor.set_globally(head + calls.rstrip("\n"), "ctypes", "sys")


class Threads(_Environment):
    """Lets torch use fewer threads."""

    name = "threads"
    choices = ("one", "half")
    kind = CLOSE
    why = "with fewer threads, small operations spend less time on synchronization"
    saves = ARITHMETIC

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        threads = num_threads(facts)
        if not is_on_cpu(facts):
            return "it does not compute on the CPU"
        if threads < 2 or (value == "half" and threads < 4):
            return f"it has {threads} thread{'s' * (threads > 1)}"
        return ""

    def environment(self, value: str, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Returns the number of threads of OpenMP."""
        return {"OMP_NUM_THREADS": str(self._count(value, num_threads(facts)))}

    def edit(self, editor: Editor) -> None:
        """Sets torch's number of threads."""
        editor.set_globally(f"torch.set_num_threads({self._count(editor.value, editor.threads)})", "torch")

    def _count(self, value: str, threads: int) -> int:
        return 1 if value == "one" else threads // 2


class Spinning(_Environment):
    """Lets threads that wait give up their core sooner."""

    name = "spin_wait"
    choices = ("short",)
    kind = EXACT
    why = "idle threads stop spinning and free their core for others"

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        if not is_on_cpu(facts):
            return "it does not compute on the CPU"
        return "" if num_threads(facts) > 1 else "it has 1 thread"

    def environment(self, value: str, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Returns the variable of GNU's OpenMP."""
        return SPIN_COUNT

    def edit(self, editor: Editor) -> None:
        """Sets the variable in the script."""
        for name, text in SPIN_COUNT.items():
            editor.set_variable(name, text)


class Allocator(_Environment):
    """Lets blocks of GPU memory grow."""

    name = "allocator"
    choices = ("expandable",)
    kind = EXACT
    why = "blocks of GPU memory can grow, so that varying sizes leave fewer gaps"

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        if not is_on_gpu(facts):
            return "it does not train on a GPU"
        chosen = next((name for name in ALLOCATOR if name in os.environ), "")
        return f"{chosen} is set" if chosen else ""

    def environment(self, value: str, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Returns the variable of torch's allocator."""
        return {ALLOCATOR[0]: EXPANDABLE}

    def edit(self, editor: Editor) -> None:
        """Sets the variable in the script."""
        editor.set_variable(ALLOCATOR[0], EXPANDABLE)


class Pages(_Environment):
    """Puts host memory into huge pages."""

    name = "huge_pages"
    choices = ("on",)
    kind = EXACT
    why = "host memory is in huge pages, which are faster to look up and vary less between processes"
    no_edit = "the C library reads it before Python starts; use `sweeper exec`"

    def refusal(self, value: str, facts: Mapping[str, Any]) -> str:
        """Returns why a value is not tried for a training."""
        if not is_on_cpu(facts):
            return "it does not compute on the CPU"
        if TUNABLES in os.environ:
            return f"{TUNABLES} is set"
        return "" if _can_ask_for_huge_pages() else "the C library or the kernel does not offer them"

    def environment(self, value: str, facts: Mapping[str, Any]) -> Mapping[str, str]:
        """Returns the variable of glibc."""
        return {TUNABLES: "glibc.malloc.hugetlb=1"}


def _can_ask_for_huge_pages() -> bool:
    """Returns whether the C library can ask for huge pages that it would not get otherwise."""
    try:
        with open(HUGE_PAGES, encoding="ascii") as file:
            is_asked_for = "[madvise]" in file.read()
    except OSError:
        return False
    name, version = platform.libc_ver()
    release = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    return is_asked_for and name == "glibc" and release >= (2, 35)
