"""What `sweeper tune` gains for scripts that it has never seen, and whether the gain holds.

python benchmarks/tune.py scripts batch planted kills        writes benchmarks/results/<device>/tune.json
python benchmarks/tune.py programs --programs DIR [--python FOLDER] [--only NAME,...]
python benchmarks/tune.py later patches hand --home DIR --programs DIR     what `programs` found there, again

scripts     two scripts that hand out one row at a time (benchmarks/unedited): one command, three minutes
batch       the same with --allow-batch-size
programs    public training programs (benchmarks/programs.py), unedited
later       the programs' winners in new processes, in turns with their own commands
patches     the programs' winners as patches: whether each hunk applies, and how fast the patched program is
hand        the programs' winners against versions edited by hand: `main_by_hand.py` beside a `main.py`
planted     fast but wrong changes that are accepted, and harmless ones that are not (tests/tuning/planted.py)
tenths      changes that bring 10%, one in each of twelve tunes of five minutes, that are not handed over
asks        trainings with what people ask about, each with the change that answers it
idle        harmless changes that bring nothing but are handed over
kills       a tune that is killed at random moments, and continued by the same command
interrupts  tunes that are stopped by Ctrl-C after their first number: how long the best so far takes

--home is the folder that keeps the tunes, for `later`: a new one by default.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import runpy
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import Figure, publish
from programs import PROGRAMS

from sweeper.judging.arms import commands
from sweeper.judging.speed import compare
from sweeper.script.changes.change import CLOSE, EXACT
from sweeper.tuning.options import name_of

ROOT = Path(__file__).parents[1]
UNEDITED = ROOT / "benchmarks" / "unedited"
PLANTED = ROOT / "tests" / "tuning" / "planted.py"
MINUTES = 3.0
MAX_SECONDS = 1500
LATER_MINUTES = 1.5
LATER = "later.json"
"""File in the home: for each program, what is needed to measure its winner again."""
KILLS, INTERRUPTS = 50, 20
BY_HAND = "_by_hand.py"


@dataclass(frozen=True)
class Asked:
    """The command line.

    Attributes:
        programs: The folder with the public programs.
        only: Their names.
    """

    home: Path
    programs: Path
    only: Sequence[str]
    kills: int


@dataclass(frozen=True)
class Tuned:
    """A tune that has ended.

    Attributes:
        shown: The sweep as `sweeper show --json` prints it; empty if there is none.
        verified: What was verified about the winner's changes; empty without a winner.
        baseline: What the command as it is measured, as it is stored; empty if it failed.
    """

    output: str
    minutes: float
    shown: Mapping[str, Any] = field(default_factory=dict)
    verified: Mapping[str, Any] = field(default_factory=dict)
    baseline: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> tuple[float, float, float]:
        """The confirmed ratio with its interval; 1 if no winner was handed over."""
        winner = self.shown.get("winner")
        if not winner or not self.verified or self.verified["difference"]:
            return 1.0, 1.0, 1.0
        # A single turn of each carries no interval.
        return winner["ratio"], winner["ratio_low"] or 0.0, winner["ratio_high"] or math.inf

    @property
    def first_ratio_at(self) -> float:
        """The second at which the first ratio was said; infinite if none was."""
        first = re.search(r"^ *(\d+) s  .*\dx[ ,]", self.output, re.MULTILINE)
        return float(first.group(1)) if first else math.inf

    @property
    def seconds_to_first_ratio(self) -> float:
        """How long two starts and 25 steps of each may take, with 20 seconds more."""
        start, step = (float(self.baseline.get(name, 0.0)) for name in ("startup_seconds", "step_ms"))
        return 20 + 2 * (start + 25 * step / 1000)

    @property
    def changes(self) -> str:
        """The winner's changes, in words."""
        return " ".join(f"{change['name']}={change['value']}" for change in self.verified.get("changes", ()))


def sweeper(*words: str, folder: Path, env: Mapping[str, str] | None = None) -> list[Any]:
    """Returns the arguments of `subprocess` for a sweeper command."""
    path = f"{ROOT}:{(env or {}).get('PYTHONPATH', '')}".rstrip(":")
    return [
        [sys.executable, "-m", "sweeper", *words],
        {"cwd": folder, "env": {**os.environ, **(env or {}), "PYTHONPATH": path}},
    ]


def tuned(
    name: str,
    command: Sequence[str],
    folder: Path,
    home: Path,
    env: Mapping[str, str],
    *options: str,
    minutes: float = MINUTES,
) -> Tuned:
    """Runs one tune, as a newcomer would."""
    began = time.monotonic()
    words = ["tune", f"--minutes={minutes:g}", f"--name={name}", f"--home={home}", *options, "--", *command]
    arguments, where = sweeper(*words, folder=folder, env=env)
    done = subprocess.run(
        arguments, **where, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=MAX_SECONDS
    )
    took = (time.monotonic() - began) / 60
    print(done.stdout, file=sys.stderr, flush=True)
    arguments, where = sweeper("show", name, f"--home={home}", "--json", folder=folder, env=env)
    shown = subprocess.run(arguments, **where, capture_output=True, text=True).stdout
    tree = json.loads(shown) if shown.startswith("{") else {}
    number = (tree.get("winner") or {}).get("number", 0)
    trials = home / "sweeps" / name / "trials"
    return Tuned(
        output=done.stdout,
        minutes=took,
        shown=tree,
        verified=_read(trials / f"{number:04d}" / "verification.json"),
        baseline=_read(trials / "0000" / "outcome.json"),
    )


def _read(path: Path) -> dict[str, Any]:
    """Returns what a file of JSON has, and nothing if it is not there."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def figures(name: str, tune: Tuned, bar: str = "") -> Iterator[Figure]:
    """Yields the ratio of a tune, its lower bound if there is a bar for it, and its minutes."""
    value, low, high = tune.ratio
    print(f"{name}: {tune.changes or 'nothing'}; {tune.verified.get('kind', '')}", flush=True)
    yield Figure(figure=f"{name}: tuned / as it is", value=value, low=low, high=high, unit="x", repeats=1)
    if bar:
        yield Figure(figure=f"{name}: lower bound", value=low, low=low, high=low, bar=bar, repeats=1)
    minutes = tune.minutes
    yield Figure(figure=f"{name}: minutes", value=minutes, low=minutes, high=minutes, bar="<= 3.3", repeats=1)


BARS = {"mlp": (">= 3.5", ">= 20"), "lstm": (">= 2.2", ">= 2.2")}
"""Lower bounds with the changes alone, on a processor that computes in bfloat16, and with larger batches."""


def scripts(asked: Asked) -> Iterator[Figure]:
    """Yields what a tune gains for the scripts of this repository."""
    for name, (bar, _) in BARS.items():
        if asked.only and name not in asked.only:
            continue
        command = [sys.executable, f"{name}.py"]
        tune = tuned(f"tune-{name}", command, UNEDITED, asked.home, {})
        yield from figures(name, tune, bar)
        yield _count(f"{name}: seconds until the first ratio", tune.first_ratio_at, "<= 30")


def batch(asked: Asked) -> Iterator[Figure]:
    """Yields the same with larger batches allowed."""
    for name, (_, bar) in BARS.items():
        if asked.only and name not in asked.only:
            continue
        command = [sys.executable, f"{name}.py"]
        tune = tuned(f"batch-{name}", command, UNEDITED, asked.home, {}, "--allow-batch-size")
        yield from figures(name, tune)
        together = re.search(r"Both sweeps together: ([\d.]+)x \[([\d.]+), ([\d.]+)\]", tune.output)
        value, low, high = map(float, together.groups()) if together else alone(name, asked.home)
        what = f"{name}, larger batches allowed: lower bound"
        yield Figure(figure=what, value=low, low=low, high=high, bar=bar, unit="x", repeats=1)
        print(f"{name}, larger batches allowed: {value:.3g}x", flush=True)


def alone(name: str, home: Path) -> tuple[float, float, float]:
    """Returns the ratio of larger batches alone; 1 if none won."""
    arguments, where = sweeper("show", f"batch-{name}-batch", f"--home={home}", "--json", folder=UNEDITED)
    shown = subprocess.run(arguments, **where, capture_output=True, text=True).stdout
    winner = json.loads(shown).get("winner") if shown.startswith("{") else None
    return (winner["ratio"], winner["ratio_low"], winner["ratio_high"]) if winner else (1.0, 1.0, 1.0)


def programs(asked: Asked) -> Iterator[Figure]:
    """Yields what a tune gains for public programs, and the median."""
    for name in asked.only or PROGRAMS:
        program = PROGRAMS[name]
        folder = asked.programs / program.folder
        if not folder.is_dir():
            print(f"{name}: {folder} is not there")
            continue
        tune = tuned(f"tune-{name}", shlex.split(program.command), folder, asked.home, program.env)
        yield from figures(name, tune)
        longest = tune.seconds_to_first_ratio
        yield _count(f"{name}: seconds until the first ratio", tune.first_ratio_at, f"<= {longest:.0f}")
        _remember(asked.home, name, tune)
    ratios = [entry["ratio"][0] for entry in _remembered(asked.home).values()]
    if len(ratios) == len(PROGRAMS):
        yield Figure(
            figure="median of the programs",
            value=statistics.median(ratios),
            low=min(ratios),
            high=max(ratios),
            bar=">= 1.3",
            unit="x",
            repeats=len(ratios),
        )


def _remembered(home: Path) -> dict[str, Any]:
    """Returns what is known about the programs that were tuned in a home, by name."""
    return _read(home / LATER)


def _remember(home: Path, name: str, tune: Tuned) -> None:
    known = _remembered(home)
    known[name] = {"ratio": tune.ratio, "changes": tune.changes, "at": time.time()}
    (home / LATER).write_text(json.dumps(known, indent=1), encoding="utf-8")


@dataclass(frozen=True)
class Winner:
    """What a tune found for a program.

    Attributes:
        ratio: The confirmed ratio, with its interval.
        at: The time of the confirmation, by `time.time()`.
    """

    name: str
    best: Path
    folder: Path
    command: Sequence[str]
    env: Mapping[str, str]
    ratio: tuple[float, float, float]
    at: float

    @property
    def run(self) -> tuple[Sequence[str], Mapping[str, str]]:
        """The command that uses it, and its environment."""
        words = ("exec", str(self.best), "--", *self.command)
        arguments, where = sweeper(*words, folder=self.folder, env=self.env)
        return arguments, where["env"]


def winners(asked: Asked) -> Iterator[Winner]:
    """Yields the programs' winners in a home."""
    for name, entry in _remembered(asked.home).items():
        best = asked.home / "sweeps" / f"tune-{name}" / "best.yaml"
        if best.exists() and not (asked.only and name not in asked.only):
            program = PROGRAMS[name]
            yield Winner(
                name=name,
                best=best,
                folder=asked.programs / program.folder,
                command=shlex.split(program.command),
                env=program.env,
                ratio=tuple(entry["ratio"]),
                at=entry["at"],
            )


def later(asked: Asked) -> Iterator[Figure]:
    """Yields the ratios of earlier winners in new processes, in turns with the unchanged commands."""
    inside = []
    for winner in winners(asked):
        print(f"{winner.name}: {(time.time() - winner.at) / 60:.0f} minutes later", flush=True)
        arguments, env = winner.run
        (figure,) = _measured_again(winner.name, winner.command, arguments, winner.folder, env, winner.ratio)
        _, low, high = winner.ratio
        inside.append(low <= figure.value <= high)
        yield figure
    if inside:
        share = 100 * sum(inside) / len(inside)
        yield Figure(
            figure="later ratios inside the interval that was shown",
            value=share,
            low=share,
            high=share,
            bar=">= 90",
            unit="%",
            repeats=len(inside),
        )


PATCHED = re.compile(r"without sweeper: ([\d.]+)x \(\d+% interval \[([\d.]+), ([\d.]+)\], (\d+) starts\)")


def patches(asked: Asked) -> Iterator[Figure]:
    """Yields how fast the programs are with their winners written into their files."""
    for winner in winners(asked):
        out = asked.home / f"{winner.name}.patch"
        words = ("export", f"tune-{winner.name}", f"--home={asked.home}", "--format=patch", f"--out={out}")
        arguments, where = sweeper(*words, folder=winner.folder, env=winner.env)
        done = subprocess.run(arguments, **where, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(done.stdout, flush=True)
        match = PATCHED.search(" ".join(done.stdout.split()))
        if match is None:
            yield _count(f"{winner.name}: patch", 0.0, ">= 1")
            continue
        value, low, high = map(float, match.groups()[:3])
        yield Figure(
            figure=f"{winner.name}: patched / as it is",
            value=value,
            low=low,
            high=high,
            # The confirmed ratio holds if the two intervals overlap.
            bar=f">= {winner.ratio[1] * value / high:.3g}",
            unit="x",
            repeats=int(match[4]),
        )
        fail = [hunk for hunk in _hunks(out.read_text(encoding="utf-8")) if not _applies(hunk, winner.folder)]
        print(*fail, sep="\n", flush=True)
        yield _count(f"{winner.name}: hunks that do not apply alone", float(len(fail)))


def _hunks(patch: str) -> Iterator[str]:
    """Yields each hunk of a patch as a separate patch."""
    for file in re.split(r"^(?=--- )", patch, flags=re.MULTILINE):
        head, *parts = re.split(r"^(?=@@ )", file, flags=re.MULTILINE)
        yield from (head + part for part in parts)


def _applies(patch: str, folder: Path) -> bool:
    top = subprocess.run(
        ["git", "rev-parse", "--show-toplevel"], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()
    return subprocess.run(["git", "apply", "--check"], input=patch, cwd=top, text=True).returncode == 0


def hand(asked: Asked) -> Iterator[Figure]:
    """Yields the speed of the programs' winners over that of versions edited by hand."""
    for winner in winners(asked):
        by_hand = [word.replace(".py", BY_HAND) for word in winner.command]
        script = next((word for word in by_hand if word.endswith(BY_HAND)), "")
        if script and (winner.folder / script).exists():
            arguments, env = winner.run
            what = f"{winner.name}: exec / edited by hand"
            yield from _in_turns(what, by_hand, arguments, winner.folder, env, ">= 0.9")


def _measured_again(
    name: str,
    command: Sequence[str],
    tuned_command: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    was: Sequence[float],
) -> Iterator[Figure]:
    """Yields the ratio of `exec` to the command as it is, in turns."""
    print(f"{name}: was {was[0]:.2f}x [{was[1]:.2f}, {was[2]:.2f}]", flush=True)
    yield from _in_turns(f"{name}: exec / as it is, later", command, tuned_command, folder, env, ">= 1")


def _in_turns(
    what: str,
    command: Sequence[str],
    other: Sequence[str],
    folder: Path,
    env: Mapping[str, str],
    bar: str,
) -> Iterator[Figure]:
    """Yields the ratio of one command's speed to another's, in turns."""
    own = dict(os.environ)
    os.environ.update(env)
    try:
        comparison = compare(commands(command, other, folder), 60 * LATER_MINUTES, lambda _: None)
    finally:
        os.environ.clear()
        os.environ.update(own)
    print(f"{what}: {comparison.ratio:.2f}x [{comparison.low:.2f}, {comparison.high:.2f}]", flush=True)
    yield Figure(
        figure=what,
        value=comparison.ratio,
        low=comparison.low,
        high=comparison.high,
        bar=bar,
        unit="x",
        repeats=len(comparison.before),
    )


SCRIPTS = {"WRONG": ("train.py",), "WRONG_CAREFUL": ("careful.py",), "WRONG_WORKERS": ("careful.py", "2")}
"""The script for each list of wrong changes in `planted.py`."""


def planted(_: Asked) -> Iterator[Figure]:
    """Yields how many of the planted changes are judged wrongly."""
    harness = runpy.run_path(str(PLANTED.with_name("test_planted.py")))
    lists = runpy.run_path(str(PLANTED))
    for which, script in (*SCRIPTS.items(), ("HARMLESS", ("train.py",))):
        verified, is_wrong = harness["Verified"](*script), which != "HARMLESS"
        names = [f"{work.__name__}_{kind}" for work in lists[which] for kind in (EXACT, CLOSE)]
        value = 0.0
        for name in names:
            answer = verified.planted(name)
            print(f"  {name}: {answer.fault or answer.kind}", flush=True)
            value += bool(answer.fault) != is_wrong
        what = "wrong changes accepted" if is_wrong else "harmless changes refused"
        yield _count(f"{what}, of {len(lists[which])} in {' '.join(script)}, each twice", value)


def idle(asked: Asked) -> Iterator[Figure]:
    """Yields how many harmless changes that bring nothing a tune hands over."""
    names = {f"{work.__name__}_exact" for work in runpy.run_path(str(PLANTED))["HARMLESS"]}
    with _only_changes("planted", names) as file:
        command, env = [sys.executable, "mlp.py"], {"PYTHONPATH": str(PLANTED.parent)}
        tune = tuned("idle", command, UNEDITED, asked.home, env, f"--changes={file}")
    made = {change["name"] for change in tune.verified.get("changes", ())} & names
    print(f"handed over: {tune.changes}", flush=True)
    yield _count(f"harmless changes handed over, of {len(names)}", float(len(made)), "<= 1")


@contextlib.contextmanager
def _only_changes(module: str, names: Collection[str]) -> Iterator[Path]:
    """Makes a file with those changes of a module that have these names."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "changes.py")
        text = (
            f"from {module} import CHANGES as ALL\nCHANGES = [one for one in ALL if one.name in {names!r}]\n"
        )
        file.write_text(text, encoding="utf-8")
        yield file


def tenths(asked: Asked) -> Iterator[Figure]:
    """Yields how many changes that end a waste of a tenth are not handed over."""
    script = UNEDITED / "wasteful.py"
    missed = 0
    for place in asked.only or runpy.run_path(str(script))["PLACES"]:
        command, env = [sys.executable, script.name, place], {"PYTHONPATH": str(UNEDITED)}
        with _only_changes("wasteful", {place}) as file:
            option = f"--changes={file}"
            tune = tuned(f"tenth-{place}", command, UNEDITED, asked.home, env, option, minutes=5.0)
        is_made = place in {change["name"] for change in tune.verified.get("changes", ())}
        print(f"{place}: {'' if is_made else 'not '}handed over, with {tune.changes}", flush=True)
        missed += not is_made
    yield _count("changes that bring 10%, not handed over, of 12", float(missed), "<= 2")


def asks(asked: Asked) -> Iterator[Figure]:
    """Yields what a tune gains for trainings with what people ask about, and if the change for it is made."""
    script, missed = UNEDITED / "asks.py", 0
    for name, change in runpy.run_path(str(script))["ASKS"].items():
        if asked.only and name not in asked.only:
            continue
        program = ["torchrun", "--nproc-per-node=2"] if change == "exchange" else [sys.executable]
        tune = tuned(f"ask-{name}", [*program, script.name, name], UNEDITED, asked.home, {})
        yield from figures(name, tune)
        is_made = change in {made["name"] for made in tune.verified.get("changes", ())}
        print(f"{name}: {'' if is_made else 'not '}answered by {change}, with {tune.changes}", flush=True)
        missed += not is_made
    yield _count("asks that the change for them does not answer, of 5", float(missed))


def _count(what: str, value: float, bar: str = "<= 0", repeats: int = 1) -> Figure:
    return Figure(figure=what, value=value, low=value, high=value, bar=bar, repeats=repeats)


def kills(asked: Asked) -> Iterator[Figure]:
    """Yields how many kills of a tune left something behind, or could not be continued from."""
    draw, faults = random.Random(0), 0
    folder = Path(tempfile.mkdtemp(prefix="sweeper-kills-"))
    (folder / "train.py").write_text((UNEDITED / "mlp.py").read_text(encoding="utf-8"), encoding="utf-8")
    name, home = name_of("train.py"), folder / "home"
    command = ["tune", "--minutes=4", f"--home={home}", "--", sys.executable, "train.py"]
    for turn in range(asked.kills):
        arguments, where = sweeper(*command, folder=folder)
        process = subprocess.Popen(
            arguments, **where, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(draw.uniform(0.5, 25.0))
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        deadline = time.monotonic() + 20
        while (left := _running(folder)) and time.monotonic() < deadline:
            time.sleep(0.5)
        torn = [str(path) for path in home.rglob("*.json") if not _reads(path)]
        if left or torn:
            faults += 1
            print(f"kill {turn}: still running {left}, torn {torn}", flush=True)
    arguments, where = sweeper(*command, folder=folder)
    done = subprocess.run(arguments, **where, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, file=sys.stderr)
    # Where kills left time for a tune to end, the same command has begun another one.
    latest = max((home / "sweeps").glob(f"{name}*"), key=lambda sweep: (sweep / "sweep.yaml").stat().st_mtime)
    is_finished = done.returncode == 0 and (latest / "best.yaml").exists()
    yield _count(f"kills that left something, of {asked.kills}", faults, repeats=asked.kills)
    yield _count("not continued to an end", float(not is_finished))


def interrupts(asked: Asked) -> Iterator[Figure]:
    """Yields how long the best so far takes after Ctrl-C, and how often it is not there."""
    draw, took, lost = random.Random(0), [], 0
    for number in range(INTERRUPTS):
        folder = Path(tempfile.mkdtemp(prefix="sweeper-interrupts-"))
        (folder / "train.py").write_text((UNEDITED / "mlp.py").read_text(encoding="utf-8"), encoding="utf-8")
        words = ("tune", "--minutes=3", f"--home={folder / 'home'}", "--", sys.executable, "train.py")
        arguments, where = sweeper(*words, folder=folder)
        where["env"]["PYTHONUNBUFFERED"] = "1"
        process = subprocess.Popen(
            arguments,
            **where,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        next((line for line in process.stdout if " s  So far " in line), None)
        time.sleep(draw.uniform(0.0, 30.0))
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[0]
        took.append(time.monotonic() - began)
        has_best = (folder / "home" / "sweeps" / name_of("train.py") / "best.yaml").exists()
        print(f"Ctrl-C {number}: {took[-1]:.1f} s{'' if has_best else ', nothing'}", flush=True)
        if not has_best or _running(folder):
            lost += 1
            print(rest, file=sys.stderr)
    yield Figure(
        figure="Ctrl-C: seconds until the best so far is handed over",
        value=statistics.median(took),
        low=min(took),
        high=max(took),
        bar="<= 5",
        unit="s",
        repeats=len(took),
    )
    yield _count("Ctrl-C: more than 5 s", float(sum(seconds > 5 for seconds in took)), repeats=len(took))
    yield _count("Ctrl-C: nothing handed over, or something left running", float(lost), repeats=len(took))


def _running(folder: Path) -> list[int]:
    """Returns the processes whose command or folder is below a folder."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
                if str(folder) in words or str(folder) in os.readlink(entry / "cwd"):
                    pids.append(int(entry.name))
    return pids


def _reads(path: Path) -> bool:
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return True


PARTS: Mapping[str, Callable[[Asked], Iterator[Figure]]] = {
    "scripts": scripts,
    "batch": batch,
    "programs": programs,
    "later": later,
    "patches": patches,
    "hand": hand,
    "planted": planted,
    "idle": idle,
    "tenths": tenths,
    "asks": asks,
    "kills": kills,
    "interrupts": interrupts,
}


def main() -> None:
    """Runs the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--programs", type=Path, default=Path())
    parser.add_argument(
        "--python",
        type=Path,
        default=Path(sys.executable).parent,
        help="the folder of the `python` that runs the programs",
    )
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--home", type=Path, help="where the tunes are kept")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    asked = parser.parse_args()
    # A shell starts what runs in the background without SIGINT, and the programs would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if unknown := {*asked.parts} - {*PARTS}:
        parser.error(f"a part must be one of {', '.join(PARTS)}, but got {', '.join(sorted(unknown))}")
    os.environ["PATH"] = f"{asked.python}:{os.environ['PATH']}"
    home = asked.home or Path(tempfile.mkdtemp(prefix="sweeper-tunes-"))
    home.mkdir(parents=True, exist_ok=True)
    options = Asked(
        home=home.resolve(),
        programs=asked.programs.resolve(),
        only=asked.only.split(",") if asked.only else [],
        kills=asked.kills,
    )
    for part in asked.parts or ["scripts", "batch", "planted"]:
        publish("tune", list(PARTS[part](options)), f"benchmarks/tune.py {part}")
    print(f"The tunes are in {home}.")


if __name__ == "__main__":
    main()
