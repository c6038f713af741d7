"""Call 2: the commands that a user types, on a machine without MLflow and plotly."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_day.steps import ROOT, Day, FailedError, count_of, counted
from sweeper.analysis.bottleneck import verdict_of
from sweeper.core.codec import decode
from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Measurement

PENDING = 7
"""Exit status of a command that did all but to tell MLflow."""
NOT_TOLD = "not in MLflow yet"
RESERVE_SECONDS = 30.0
"""For a sweep that is asked to end: it decides with what it has."""
PACKED_MIB = 10
"""Of the sweep's folder, what may come back."""
SMALL_SPACE = """\
name: day
pipeline: pipelines.tabular
data: {source: synthetic, rows: 20000}
space:
  batch_size: {type: categorical, choices: [256, 512]}
baseline: {loader.kind: workers, loader.num_workers: 2, loader.pin_memory: %(gpu)s, batch_size: 256}
also_try: [{loader.kind: resident, compile.mode: %(mode)s, batch_size: 512}]
measure: {window_seconds: 0.3, repeats: 1, quality_samples: 2048, warmup_cap_seconds: 2, trace: false}
search: {trials: 1, minutes: 1, seed: 0}
confirm: {top: 1, rounds: 0}
"""
WORKERS, GRAPH = 0, 1
"""Numbers of its baseline and of its reference, whose step is captured where there is a GPU."""
FEATURES = 30
PARTS = f"""\
import time
torch.manual_seed(0)
x = torch.randn(20_000, {FEATURES})
dataset = torch.utils.data.TensorDataset(x, x.sum(dim=1))
model = torch.nn.Sequential(torch.nn.Linear({FEATURES}, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))


def loss_of(model, batch):
    return torch.nn.functional.mse_loss(model(batch[0]).squeeze(-1), batch[1])


"""
"""What an exported script leaves to its user."""
REHEARSED_SWEEP = (
    *("search.minutes=0.6", "search.trials=2", "data.stocks=6", "data.days=800", "data.seq_length=10"),
    *("measure.window_seconds=0.1", "measure.repeats=1", "measure.quality_samples=1000"),
    *(
        "measure.warmup_cap_seconds=0.5",
        "measure.trace=false",
        "confirm.rounds=2",
        "confirm.top=1",
        "also_try=[]",
    ),
    *("space={batch_size: {type: categorical, choices: [128, 256]}}", "baseline.loader.num_workers=2"),
)


SCRIPT = """\
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader

device = "cuda" if torch.cuda.is_available() else "cpu"
width, layers, batch, waits = map(int, sys.argv[1:])
model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)), nn.Linear(width, 1)).to(device)
optimizer = torch.optim.SGD(model.parameters(), 1e-4)
x = torch.randn(batch, width, device=device)
loader = DataLoader([(x, x[:, :1])] * 1000, batch_size=None)
while True:
    for features, target in loader:
        loss = nn.functional.mse_loss(model(features), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if waits:
            loss.item()
"""
WATCHED = {
    "launch-bound": (64, 60, 8, 0),
    "compute-bound": (4096, 4, 4096, 0),
    "sync-bound": (64, 60, 8, 1),
}
"""Width, layers, batch size and whether each step reads the loss, by the verdict that is expected."""


def run_sweeper(
    *arguments: str, ok: Sequence[int] = (0,), seconds: float = 600.0, folder: Path = ROOT
) -> str:
    """Runs a command of sweeper's, shows what it says on stderr, and returns what it prints.

    Raises:
        FailedError: It ended with another status than those in `ok`.
    """
    done = subprocess.run(
        [sys.executable, "-m", "sweeper", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        check=False,
        timeout=seconds,
    )
    if done.returncode not in ok:
        print(done.stdout[-3000:])
        raise FailedError(f"`sweeper {arguments[0]}` ended with {done.returncode}, not with {ok}")
    return done.stdout


def doctor(day: Day) -> str:
    """Has the machine examined; a check that fails is a finding."""
    with tempfile.TemporaryDirectory() as home:
        found = json.loads(run_sweeper("doctor", "--json", "--home", home, ok=(0, 1)))
    day.found(kind="doctor", **found)
    for each in found["ceilings"]:
        _measured(day, f"doctor: {each['name']}", each["value"], each["unit"])
    states = Counter(each["state"] for each in found["checks"])
    for each in found["checks"]:
        if each["state"] != "ok":
            print(each["state"], each["name"], each["text"], each["remedy"], sep=": ")
    # That MLflow is not here is as it is meant to be.
    failed = [each["name"] for each in found["checks"] if each["state"] == "fail"]
    said = f"{counted(states)}; failed: {', '.join(failed) or 'none'}; {len(found['ceilings'])} ceilings"
    if not found["ceilings"] and not day.rehearse:
        raise FailedError(said)
    return said


def watch(day: Day) -> str:
    """Watches scripts whose bottleneck is known; the verdicts and what they rest on are kept."""
    said = []
    for expected, sizes in list(WATCHED.items())[: 1 if day.rehearse else None]:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "train.py"
            script.write_text(SCRIPT, encoding="utf-8")
            numbers = map(str, sizes)
            found = json.loads(run_sweeper("watch", "--json", "--", sys.executable, str(script), *numbers))
        measured = decode(Measurement, found)
        verdict = verdict_of(measured, TrialConfig(args={}))
        day.found(kind="watched", expected=expected, verdict=verdict.kind, why=verdict.why, **found)
        said.append(f"{verdict.kind} for {expected}")
        if measured.device.kind == "cuda" and not (measured.diagnosis and measured.diagnosis.busy_s):
            raise FailedError(f"the kernels of a script were not seen: {verdict.why}")
    return ", ".join(said)


def _measured(day: Day, name: str, value: float, unit: str) -> None:
    from common import Figure

    day.figure("gpu", Figure(figure=name, value=value, low=value, high=value, unit=unit, repeats=1))


def _small_sweep(day: Day, home: Path) -> None:
    """Sweeps two configurations: a plain one with workers, and one whose step is captured."""
    gpu = not day.rehearse
    space = home / "day.yaml"
    text = SMALL_SPACE % {"gpu": str(gpu).lower(), "mode": "graph" if gpu else "eager"}
    space.write_text(text, encoding="utf-8")
    print(run_sweeper("run", str(space), "--home", str(home), ok=(0, PENDING)))


def export(day: Day) -> str:
    """Exports a graph's and a workers' configuration as Python, and runs both scripts."""
    said = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        _small_sweep(day, home)
        best = day.out / "call-2-graph.yaml"
        run_sweeper("export", "day", "--trial", str(GRAPH), "--home", folder, "--out", str(best))
        for title, number in (("graph", GRAPH), ("workers", WORKERS)):
            arguments = ("export", "day", "--trial", str(number), "--home", folder, "--format", "python")
            script = home / f"{title}.py"
            script.write_text(
                _complete(run_sweeper(*arguments), 1 if day.rehearse else 100), encoding="utf-8"
            )
            done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
            day.found(kind="export", of=title, status=done.returncode, script=script.read_text("utf-8"))
            if done.returncode:
                raise FailedError(f"the exported script of {title} failed: {done.stderr[-2000:]}")
            loss, speed = map(float, done.stdout.split()[-2:])
            _measured(day, f"exported script, {title}", speed, "/s")
            said.append(f"{title} {speed:,.0f}/s, loss {loss:.3g}")
    return "; ".join(said)


def _complete(lines: str, epochs: int) -> str:
    """Returns exported lines with the user's parts; it prints its last loss and its samples per second."""
    head, marker, tail = lines.partition("# Your `dataset`")
    assert marker, "the export has no place for the user's parts"
    _, _, tail = tail.partition("\n")
    assert "EPOCHS = 1\n" in tail
    tail = tail.replace("EPOCHS = 1\n", f"EPOCHS = {epochs}\n", 1)
    loop = re.search(r"^for epoch in range\(EPOCHS\):", tail, re.M)
    assert loop, "the export has no loop over epochs"
    tail = f"{tail[: loop.start()]}began = time.perf_counter()\n{tail[loop.start() :]}"
    return (
        f"{head}{PARTS}{tail}\nprint(float(loss))\n"
        "print(EPOCHS * len(dataset) / (time.perf_counter() - began))\n"
    )


def train(day: Day) -> str:
    """Kills a production run after a checkpoint; the same command goes on, and the history with it."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        best = day.out / "call-2-graph.yaml"
        if not best.exists():
            _small_sweep(day, home)
            best = home / "graph.yaml"
            run_sweeper("export", "day", "--trial", str(GRAPH), "--home", folder, "--out", str(best))
        minutes = 0.15 if day.rehearse else 0.3
        command = ["train", str(best), "--home", folder, "--epochs", "1000000", "--json"]
        command += ["--max-minutes", str(minutes), "--set", "train.checkpoint_minutes=0.03"]
        _kill_after_a_checkpoint(home, command)
        ended = json.loads(run_sweeper(*command, ok=(0, PENDING)))
        lines = [json.loads(line) for line in next(home.glob("train/*/history.jsonl")).open(encoding="utf-8")]
    begins = [line["steps"] for line in lines if "pid" in line]
    steps = [line["steps"] for line in lines]
    said = (
        f"killed and gone on from step {begins[-1]:,}, ended at {steps[-1]:,} after {ended['seconds']:.0f} s "
        f"({ended['ended']}); {ended['verdict']}"
    )
    day.found(kind="train", begins=begins, ended=ended)
    resumed = len(begins) == 2 and begins[1] > 0 and steps == sorted(steps)
    count_of(day, "gpu", "a killed run goes on with its history", resumed, ">= 1")
    if not resumed:
        raise FailedError(said)
    return said


def _kill_after_a_checkpoint(home: Path, command: Sequence[str]) -> None:
    process = subprocess.Popen([sys.executable, "-m", "sweeper", *command], cwd=ROOT)
    try:
        # Not a folder that is being written, whose name begins with a dot.
        while not any(home.glob("train/*/checkpoints/[0-9]*")):
            if process.poll() is not None:
                raise FailedError(f"`sweeper train` ended with {process.returncode} before a checkpoint")
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait()


def sweep(day: Day) -> str:
    """Runs the sweep of the README; what it found is packed, so that MLflow can be told at home."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        given = REHEARSED_SWEEP if day.rehearse else ("search.minutes=5",)
        overrides = itertools.chain.from_iterable(("--set", each) for each in given)
        arguments = ["run", "search_spaces/a10.yaml", "--home", str(home), *overrides]
        status, text = shown_as_it_comes(
            [sys.executable, "-m", "sweeper", *arguments], day.left() - RESERVE_SECONDS
        )
        _pack(home, day.out / "call-2-home.tar.gz")
        name = next((home / "sweeps").iterdir()).name
        shown = json.loads(run_sweeper("show", name, "--home", str(home), "--json"))
    outcomes = Counter(trial.get("failure") or "measured" for trial in shown["trials"])
    day.found(kind="sweep", status=status, outcomes=outcomes, said=text[-5000:], shown=_brief(shown))
    wanted = 0 if _has_mlflow() else PENDING
    if wanted == PENDING:
        said_so = status == PENDING and NOT_TOLD in text
        count_of(day, "gpu", "a sweep without MLflow ends with 7 and says so", said_so, ">= 1")
    said = f"exit {status}; {counted(outcomes)}; {_decision(text)}"
    if status != wanted:
        raise FailedError(said)
    return said


def _has_mlflow() -> bool:
    try:
        importlib.import_module("mlflow")
    except ImportError:
        return False
    return True


def shown_as_it_comes(command: Sequence[str], seconds: float, folder: Path = ROOT) -> tuple[int, str]:
    """Runs a command, shows what it says as it comes, and returns its status and all of that.

    Args:
        seconds: After so long it is asked to end, as by Ctrl-C.
    """
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ
    )
    assert process.stdout is not None
    timer = threading.Timer(seconds, process.send_signal, (signal.SIGINT,))
    timer.start()
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    timer.cancel()
    return process.wait(), "".join(lines)


def _decision(text: str) -> str:
    """Returns the line of a summary that says what was decided."""
    return next((line for line in text.splitlines() if line.startswith("stocks-a10: ")), "no summary")


def _brief(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what `show --json` says, less the trials' own cards."""
    trials = [{k: v for k, v in trial.items() if k != "card"} for trial in shown["trials"]]
    return {**shown, "trials": trials}


def _pack(home: Path, archive: Path) -> None:
    """Packs a home's sweeps, the smallest files first, up to `PACKED_MIB` of them before compression.

    Prepared data and compiled code stay behind; MLflow needs neither.
    """
    left = PACKED_MIB * 2**20
    with tarfile.open(archive, "w:gz") as tar:
        for path in sorted(_files(home / "sweeps"), key=lambda path: path.stat().st_size):
            left -= path.stat().st_size
            if left < 0:
                print(f"not packed: {path.relative_to(home)} ({path.stat().st_size:,} bytes)")
                continue
            tar.add(path, Path("home") / path.relative_to(home))


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
