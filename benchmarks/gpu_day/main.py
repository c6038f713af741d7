"""The command line of `benchmarks/gpu.py`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from gpu_day import calls, pack, read
from gpu_day.steps import CALLS, FAILING, ROOT, STEPS, WAYS_TO_FAIL, run_step, ways


def main() -> int:
    """Runs what the arguments ask for and returns the exit status."""
    parser = argparse.ArgumentParser(prog="gpu.py", description="Everything to measure on a GPU.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    one = commands.add_parser("pack", help="fetch the wheels that a bare machine lacks")
    one.add_argument("folder", type=Path, nargs="?", default=pack.FOLDER)
    one.add_argument("--python", default="3.12", help="the machine's version of Python")
    for call, most in CALLS.items():
        names = [step.name for step in STEPS if step.call == call]
        one = commands.add_parser(call, help=f"{', '.join(names)} ({most:.0f} s)")
        _add_shared(one)
        one.add_argument(
            "--only", nargs="+", choices=names, default=(), metavar="STEP", help=", ".join(names)
        )
        one.add_argument("--fail", nargs="+", default=(), metavar="STEP[=HOW]", help=", ".join(WAYS_TO_FAIL))
        one.add_argument("--seconds", type=float, help="of a step, where that is less than its time box")
    one = commands.add_parser("read", help="write results, fixtures and docs/gpus.md")
    one.add_argument("folder", type=Path)
    one.add_argument("--into", type=Path, default=ROOT, help="a checkout; default: this one")
    one.add_argument("--commit", default="", help="of the code that ran, where its rows do not know it")
    one = commands.add_parser("step", help="run one step by itself")
    one.add_argument("name", choices=[step.name for step in STEPS], metavar="NAME")
    _add_shared(one)
    one.add_argument("--rows", type=Path, help="file for its rows; default: printed")
    one.add_argument("--seconds", type=float, help="what it has; default: its time box")
    given = parser.parse_args()
    if given.command == "pack":
        return pack.pack(given.folder, given.python)
    if given.command == "read":
        return read.read(given.folder, given.into, given.commit)
    step = next((step for step in STEPS if given.command == "step" and step.name == given.name), None)
    if step and calls.PREPARED not in os.environ:
        with calls.environment(given.wheels, rehearse=given.rehearse) as environ:
            return subprocess.run([sys.executable, *sys.argv], env=environ, check=False).returncode
    if step:
        seconds = given.seconds or step.seconds
        return run_step(step, given.rows, given.out, rehearse=given.rehearse, seconds=seconds)
    if unknown := set(ways(given.fail)) - {step.name for step in STEPS if step.call == given.command}:
        parser.error(f"--fail must name steps of call {given.command}, but got {', '.join(sorted(unknown))}")
    os.environ[FAILING] = " ".join(given.fail)
    return calls.run_call(
        given.command,
        given.out,
        wheels=given.wheels,
        rehearse=given.rehearse,
        only=given.only,
        seconds=given.seconds,
    )


def _add_shared(parser: argparse.ArgumentParser) -> None:
    out = Path(os.environ.get("OUT", "out"))
    parser.add_argument("--out", type=Path, default=out, help="folder for what comes back; default: $OUT")
    parser.add_argument("--wheels", type=Path, help="folder that `pack` has filled; default: wheels/, if any")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU, each step cut short")
