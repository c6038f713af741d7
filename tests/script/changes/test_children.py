"""Child processes that read a loader's rows: they start whatever the script has open, or are refused."""

from __future__ import annotations

import os
import resource
import sys

import pytest
from hearing import completed

MANY = 1100
SCRIPT = f"""
import os, resource
import torch
from torch.utils.data import DataLoader, TensorDataset
from sweeper.script.changes.rows.children import result_of_child, results_of_children
from sweeper.script.changes.change import ChangeRefusedError

loader = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2)
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, ({2 * MANY}, most))
held = [os.dup(1) for _ in range({MANY})]
print(result_of_child(torch, loader, lambda: "read", 20.0))
# Blocks of CUDA's in a cycle are not the child's to free.
print(result_of_child(torch, loader, lambda: __import__("gc").isenabled(), 20.0))
# Room for the pipe of one child, but not for that of a second.
lowest = os.dup(1)
os.close(lowest)
resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 2, most))
try:
    results_of_children(torch, loader, [lambda: "read"] * 3, 20.0)
except ChangeRefusedError as refusal:
    print(refusal)
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("none is left")
"""


def test_rows_are_read_with_many_open_files_and_refused_with_too_many() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < 2 * MANY:
        pytest.skip("a process may not have so many open files here")
    done = completed([sys.executable, "-c", SCRIPT], {"PYTHONPATH": os.getcwd()})
    assert done.output.splitlines() == [
        "read",
        "False",
        "no process can be started to read its rows (Too many open files)",
        "none is left",
    ]
