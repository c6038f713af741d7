"""Process trees as /proc has them, of real children that compute and go."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from burning import TELL, child

from sweeper.system.process import (
    children,
    involuntary_switches,
    open_files,
    peak_bytes,
    ran_seconds,
    tree,
    usage,
    waited_seconds,
    waits,
)


def wait_for(holds: Callable[[], object], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_usage_is_time_and_memory_of_the_process_itself():
    with child("burn(0.3); block = b'x' * 2**25" + TELL) as process:
        found = usage(process.pid)
        assert 0.25 <= found.cpu_seconds < 3
        assert found.reaped_seconds == 0
        assert 2**25 < found.resident_bytes < 2**28


def test_time_of_a_waited_child_is_told_apart():
    code = "pid = os.fork()\nif not pid: burn(0.3); os._exit(0)\nos.waitpid(pid, 0)" + TELL
    with child(code) as process:
        found = usage(process.pid)
        assert found.reaped_seconds >= 0.25
        assert found.cpu_seconds < 0.25
        assert list(tree(process.pid)) == [process.pid]


def test_a_tree_has_all_generations_until_they_are_reaped():
    code = "pid = os.fork()\nif not pid:\n    if os.fork(): os.wait(); os._exit(0)"
    code += "\n    print('ready', flush=True); os.read(0, 1); os._exit(0)" + "\nos.wait()" + TELL
    with child(code) as process:
        (middle,) = children(process.pid)
        (last,) = children(middle)
        assert list(tree(process.pid)) == [process.pid, middle, last]
        assert list(children(last)) == []
        assert set(tree(os.getpid())) >= {os.getpid(), process.pid, middle, last}
        process.stdin.write("x")
        process.stdin.flush()
        assert process.stdout.readline() == "ready\n"
        assert list(tree(process.pid)) == [process.pid]
        assert usage(middle) is usage(last) is None


def test_a_child_that_has_ended_counts_until_it_is_waited_for():
    pid = os.fork()
    if pid == 0:
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
        os._exit(0)
    assert wait_for(lambda: " Z " in Path(f"/proc/{pid}/stat").read_text())
    assert pid in children(os.getpid())
    assert usage(pid).cpu_seconds >= 0.15
    os.waitpid(pid, 0)
    assert pid not in children(os.getpid())
    assert usage(pid) is None
    assert involuntary_switches(pid) == 0
    assert list(tree(pid)) == [pid]


def test_a_child_of_another_thread_is_found():
    started, end = threading.Event(), threading.Event()
    found = []

    def starts() -> None:
        with child(TELL) as process:
            found.append(process.pid)
            started.set()
            end.wait(20)

    thread = threading.Thread(target=starts)
    thread.start()
    assert started.wait(20)
    assert found[0] in children(os.getpid())
    end.set()
    thread.join()


def test_a_name_with_brackets_and_blanks_is_no_matter():
    with child("open('/proc/self/comm', 'w').write('a) R (b 1')\nburn(0.1)" + TELL) as process:
        assert 0.08 <= usage(process.pid).cpu_seconds < 3
        assert usage(process.pid).resident_bytes > 2**20


def test_involuntary_switches_and_waiting_are_those_of_all_threads():
    code = (
        "import threading\nos.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "pid = os.fork()\n"
        "if not pid: burn(0.4); os._exit(0)\n"
        # The main thread waits, and is taken from nothing; the other shares its core with the child.
        "thread = threading.Thread(target=lambda: (burn(0.4), print('ready', flush=True), time.sleep(60)),"
        " daemon=True)\n"
        "idle = threading.Thread(target=time.sleep, args=(60,), daemon=True)\n"
        "thread.start(); idle.start(); thread.join()"
    )
    began = time.monotonic()
    with child(code) as process:
        main = Path(f"/proc/{process.pid}/task/{process.pid}/status").read_text()
        of_main = int(main.rpartition("nonvoluntary_ctxt_switches:")[2])
        assert involuntary_switches(process.pid) >= of_main + 5
        # Of the time in which both ran, each had half; beside others on that core, less.
        waited = waits(process.pid)
        assert 0.1 < max(waited.values()) < time.monotonic() - began
        assert waited[process.pid] < max(waited.values())
        assert len(waited) == len(list(Path(f"/proc/{process.pid}/task").iterdir()))
        assert waited_seconds(process.pid) >= sum(waited.values())
        assert 0.35 <= ran_seconds(process.pid) < 3


def test_what_was_never_there_has_used_nothing():
    pid = 2**22 + 1
    assert usage(pid) is None
    assert involuntary_switches(pid) == 0
    assert waited_seconds(pid) is ran_seconds(pid) is None
    assert waits(pid) == {}
    assert list(children(pid)) == []
    assert open_files(pid) == set()


def test_the_peak_is_what_a_process_had_at_most():
    grown = "x = bytearray(64 * 2**20); del x; print(flush=True); input()"
    command = [sys.executable, "-c", grown]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert peak_bytes(child.pid) > 64 * 2**20
        child.communicate(b"\n")
    assert peak_bytes(child.pid) == 0
