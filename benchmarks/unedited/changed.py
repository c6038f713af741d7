"""Runs a script with something changed: changed.py slower 1.1 SCRIPT, or changed.py FILE:FUNCTION SCRIPT."""

import runpy
import sys
import time

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

LONGEST_SECONDS = 0.1


def slower(factor):
    """Has each step take longer."""
    last = time.perf_counter()

    def wait(*_):
        nonlocal last
        # A step that was stopped in the midst took no longer.
        until = time.perf_counter() + (factor - 1) * min(time.perf_counter() - last, LONGEST_SECONDS)
        while time.perf_counter() < until:
            pass
        last = time.perf_counter()

    register_optimizer_step_post_hook(wait)


if __name__ == "__main__":
    what = sys.argv.pop(1)
    if what == "slower":
        slower(float(sys.argv.pop(1)))
    else:
        path, _, name = what.rpartition(":")
        runpy.run_path(path)[name](torch)
    sys.argv = sys.argv[1:]
    sys.path.insert(0, ".")
    runpy.run_path(sys.argv[0], run_name="__main__")
