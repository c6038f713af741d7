"""The commands that a user types, on a machine without MLflow and plotly."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rest import bias

from gpu_day.steps import ROOT, Day, FailedError
from sweeper.core.codec import decode
from sweeper.core.config import TrialConfig
from sweeper.core.measurement import DeviceInfo, Measurement
from sweeper.results.verdict.bottleneck import verdict_of

PENDING = 7
"""Exit status of a command that did all but to tell MLflow."""
RESERVE_SECONDS = 15.0
"""For a sweep that is asked to end: it decides with what it has."""
TRAINING = ROOT / "benchmarks" / "unedited" / "gpu.py"
SHRUNK = "16"
"""Of a training in a rehearsal: what widths are divided by."""
QUICK = ("search.minutes=0.5",)
REHEARSED_QUICK = (
    *("search.minutes=0.4", "search.trials=1", "space={batch_size: {type: categorical, choices: [64, 128]}}"),
    *("data.rows=20000", "baseline.loader.num_workers=1", "measure.window_seconds=0.1", "measure.repeats=1"),
    *("measure.quality_samples=1000", "measure.warmup_cap_seconds=0.5", "confirm.rounds=2", "confirm.top=1"),
    "measure.trace=false",
)
GRAPH = {
    "compile.mode": "graph",
    "precision.amp": "bf16",
    "batch_size": 256,
    "optimizer.lr": 0.01,
    "optimizer.warmup_steps": 20,
}
FEATURES = 30
PARTS = f"""\
import time
torch.manual_seed(0)
x = torch.randn(20_000, {FEATURES})
dataset = torch.utils.data.TensorDataset(x, x.mean(dim=1, keepdim=True))
model = torch.nn.Sequential(torch.nn.Linear({FEATURES}, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))


def loss_of(model, batch):
    return torch.nn.functional.mse_loss(model(batch[0]).float(), batch[1])


"""
"""What an exported script leaves to its user."""


def run_sweeper(*arguments: str, ok: Sequence[int] = (0,)) -> str:
    """Runs a command of sweeper's, shows what it says on stderr, and returns what it prints.

    Raises:
        FailedError: It ended with another status than those in `ok`.
    """
    command = [sys.executable, "-m", "sweeper", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    if done.returncode not in ok:
        print(done.stdout[-3000:])
        raise FailedError(f"`sweeper {arguments[0]}` ended with {done.returncode}, not with {ok}")
    return done.stdout


def shown_as_it_comes(*arguments: str, seconds: float) -> tuple[int, str]:
    """Runs a command of sweeper's, shows what it says as it comes, and returns its status and all of that.

    Args:
        seconds: After so long it is asked to end, as by Ctrl-C.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "sweeper", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
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


def _training(name: str, day: Day) -> list[str]:
    return [sys.executable, str(TRAINING), name, *([SHRUNK] if day.rehearse else [])]


def watch(day: Day) -> str:
    """Watches a script that computes in mixed precision and reads the loss in each step."""
    row = json.loads(run_sweeper("watch", "--json", "--", *_training("amp", day)))
    measured = decode(Measurement, row)
    verdict = verdict_of(measured, TrialConfig(args={}))
    day.write("watched", verdict=verdict.kind, why=verdict.why, **row)
    said = f"{measured.throughput:,.0f}/s on {measured.device.name}; {verdict.kind}: {verdict.why}"
    if measured.device.kind != "cuda":
        raise FailedError(said)
    # The stand-in has no kernels for a profiler.
    if not day.rehearse and not (measured.diagnosis and measured.diagnosis.busy_s):
        raise FailedError(f"its kernels were not seen: {said}")
    return said


def _arms(path: Path) -> list[dict[str, str]]:
    """Returns the arms of a tune's race, each with its changes, its kind and what differs first."""
    members: dict[int, str] = {}
    arms: dict[int, int] = {}
    verdicts: dict[int, dict[str, str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        event = json.loads(line)
        if event["event"] == "arm":
            members[event["arm"]] = " ".join(event["members"])
        elif event["event"] == "start":
            arms[event["life"]] = event["arm"]
        elif event["event"] == "verified" and event["life"] in arms:
            arm = arms[event["life"]]
            if arm in members:
                known = {"changes": members[arm], "kind": event["kind"], "fault": event["fault"]}
                verdicts[arm] = {**known, "extent": event["extent"]}
    return list(verdicts.values())


def tune(day: Day) -> str:
    """Tunes the training that the step's name ends with, as a newcomer would."""
    with tempfile.TemporaryDirectory() as folder:
        home, name = Path(folder), day.name
        # A minute is for what comes after the search.
        minutes = 0.5 if day.rehearse else day.left() / 60 - 1
        options = (f"--home={home}", f"--minutes={minutes:.2g}", f"--name={name}")
        command = _training(name.removeprefix("tune-"), day)
        seconds = day.left() - RESERVE_SECONDS
        status, text = shown_as_it_comes("tune", *options, "--", *command, seconds=seconds)
        changes = _arms(home / "sweeps" / name / "races" / "first" / "race.jsonl")
        winner = _winner(home, name)
        path = home / "sweeps" / name / "trials" / f"{winner.get('number', 0):04d}" / "verification.json"
        verified = _read(path) if path.exists() else {}
        for change in changes:
            day.write("change", change=change)
        day.write("tune", status=status, said=text[-8000:], verified=verified)
        day.keep(home)
    if not changes:
        raise FailedError(f"exit {status}: nothing was verified or refused")
    refused = sum(bool(change["fault"]) for change in changes)
    said = f"exit {status}; {len(changes) - refused} arms verified, {refused} left out"
    if not winner or not verified:
        return f"{said}; nothing is handed over"
    made = " ".join(f"{change['name']}={change['value']}" for change in verified["changes"])
    ratio, low, high = (winner[key] for key in ("ratio", "ratio_low", "ratio_high"))
    day.figure(f"{name}: tuned / as it is", ratio, "x", low=low, high=high)
    return f"{said}; {ratio:.3g}x [{low:.3g}, {high:.3g}] by {made}"


def _winner(home: Path, name: str) -> dict[str, Any]:
    """Returns what was handed over; empty where nothing was."""
    if not (home / "sweeps" / name / "result.json").exists():
        return {}
    shown = json.loads(run_sweeper("show", name, f"--home={home}", "--json"))
    return shown.get("winner") or {}


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def quick(day: Day) -> str:
    """Runs the sweep that ships as `quick`; where MLflow is not installed, it says so at its end."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = REHEARSED_QUICK if day.rehearse else QUICK
        options = itertools.chain.from_iterable(("--set", override) for override in overrides)
        seconds = day.left() - RESERVE_SECONDS
        status, text = shown_as_it_comes("run", "quick", "--home", folder, *options, seconds=seconds)
        day.keep(Path(folder))
        trials = json.loads(run_sweeper("show", "quick", "--home", folder, "--json"))["trials"]
    for trial in trials:
        day.write("swept", **{key: value for key, value in trial.items() if key != "card"})
    failed = [str(trial["failure"]) for trial in trials if trial.get("failure")]
    decision = next((line for line in text.splitlines() if line.startswith("quick: ")), "no summary")
    said = f"exit {status}; {len(trials)} trials, failed: {', '.join(failed) or 'none'}; {decision}"
    if failed or status not in (0, PENDING):
        raise FailedError(said)
    return said


def _graph(form: str) -> str:
    """Returns the export of a configuration whose step is captured as a graph."""
    sys.path += [str(ROOT / "tests"), str(ROOT / "tests" / "exports")]
    from exports import export_of
    from replays import spec_of

    from sweeper.exports import render_export

    device = DeviceInfo(kind="cuda", name="GPU", uuid="GPU-1", memory_gib=80.0, capability="9.0")
    spec = spec_of(pipeline="pipelines.tabular", data={"source": "synthetic", "rows": 20_000})
    return render_export(export_of(GRAPH, spec, device=device), form)


def rest(day: Day) -> str:
    """Compares the speed of a training that takes turns with another on the GPU with its speed alone."""
    change = 100 * bias(tuple(_training("pictures", day)), turns=2 if day.rehearse else 5)
    day.figure("bias of resting", change, "%")
    return f"{change:+.1f}% beside another that rests"


def graph(day: Day) -> str:
    """Runs what is exported as Python of a configuration whose step is captured as a graph."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "exported.py"
        script.write_text(_complete(_graph("python"), 2 if day.rehearse else 100), encoding="utf-8")
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
        day.write("export", status=done.returncode, script=script.read_text(encoding="utf-8"))
    if done.returncode:
        print(done.stderr)
        raise FailedError(f"the exported script ended with {done.returncode}")
    loss, speed = map(float, done.stdout.split()[-2:])
    day.figure("exported script, graph", speed, "/s")
    return f"{speed:,.0f}/s, loss {loss:.3g}"


def _complete(lines: str, epochs: int) -> str:
    """Returns exported lines with the user's parts; it prints its last loss and its samples per second."""
    head, marker, tail = lines.partition("# Your `dataset`")
    assert marker, "the export has no place for the user's parts"
    tail = tail.partition("\n")[2].replace("EPOCHS = 1\n", f"EPOCHS = {epochs}\n", 1)
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
        best = home / "best.yaml"
        best.write_text(_graph("yaml"), encoding="utf-8")
        command = ["train", str(best), "--home", folder, "--epochs", "1000000", "--json"]
        command += ["--max-minutes", "0.15", "--set", "train.checkpoint_minutes=0.03"]
        _kill_after_a_checkpoint(home, command)
        ended = json.loads(run_sweeper(*command, ok=(0, PENDING)))
        lines = [json.loads(line) for line in next(home.glob("train/*/history.jsonl")).open(encoding="utf-8")]
    begins = [line["steps"] for line in lines if "pid" in line]
    steps = [line["steps"] for line in lines]
    said = (
        f"killed and gone on from step {begins[-1]:,}, ended at {steps[-1]:,} after {ended['seconds']:.0f} s "
        f"({ended['ended']}); {ended['verdict']}"
    )
    day.write("train", begins=begins, ended=ended)
    resumed = len(begins) == 2 and begins[1] > 0 and steps == sorted(steps)
    day.figure("a killed run goes on with its history", resumed, bar=">= 1")
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
