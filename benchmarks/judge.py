"""Whether `sweeper judge` is right: equals, planted differences, and changes that are fast and wrong.

python benchmarks/judge.py [record equals differences live beside wrong] [--runs N] [--minutes M] ...
                                                          writes benchmarks/results/<device>/judge.json

record        races of each script against itself, for five minutes, with all turns: race-turns.jsonl
equals        on these (and on judge-rounds.jsonl), how often a script is called faster or slower than itself
differences   the same with steps that take 10 and 3% longer
live          scripts whose steps take 10% longer, in real runs
beside        how long a judgement takes, in turns with another checkout of sweeper (--other TREE): --runs of
              steps that take 30 and 10% longer, and of equals; lines are kept in judge-beside.jsonl
wrong         changes that are fast and wrong (tests/tuning/planted.py), as another command

With --programs, public programs are judged, too (benchmarks/programs.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import runpy
import shlex
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import RESULTS, Figure, device_folder, publish
from programs import PROGRAMS

from sweeper.judging.arms import Arm, commands
from sweeper.judging.lives import ScriptLives
from sweeper.judging.losses import Baseline
from sweeper.judging.speed import OTHER, Speed, SpeedComparison, compare, measure_version
from sweeper.race import race
from sweeper.race.log import BASELINE, Event, Round, Verified, rounds_of
from sweeper.race.policy import Policy, Start
from sweeper.race.race import Taken
from sweeper.race.tally import Tally
from sweeper.race.verify import Claim

ROOT = Path(__file__).parents[1]
UNEDITED = ROOT / "benchmarks" / "unedited"
TUNING = ROOT / "tests" / "tuning"
CHANGED = str(UNEDITED / "changed.py")
SCRIPTS: Mapping[str, tuple[Path, tuple[str, ...]]] = {
    "mlp": (UNEDITED, ("mlp.py",)),
    "lstm": (UNEDITED, ("lstm.py",)),
    "ranks": (UNEDITED, ("ranks.py",)),
    "lightning": (UNEDITED, ("light.py",)),
    "trainer": (UNEDITED, ("trainer.py",)),
    "accelerated": (UNEDITED, ("accelerated.py",)),
    "pictures": (UNEDITED, ("pictures.py",)),
}
PUBLIC = ("mnist", "vae", "feedforward")
"""Three of the public programs, which start within seconds."""
WAKE_SECONDS = 0.3
"""Time that a turn takes beside its steps."""
WRONG = {"WRONG": ("train.py",), "WRONG_CAREFUL": ("careful.py",), "WRONG_WORKERS": ("careful.py", "2")}


@dataclass(frozen=True)
class Asked:
    """The command line."""

    runs: int
    minutes: float
    programs: Path | None = None
    other: Path | None = None

    @property
    def scripts(self) -> Mapping[str, tuple[Path, tuple[str, ...]]]:
        """Folder and command of each script, by name."""
        by_name: dict[str, tuple[Path, tuple[str, ...]]] = {}
        for name, (folder, words) in SCRIPTS.items():
            start = ("torchrun", "--nproc-per-node=2") if name == "ranks" else (sys.executable,)
            by_name[name] = folder, (*start, *words)
        if self.programs is not None:
            for name in PUBLIC:
                program = PROGRAMS[name]
                by_name[name] = self.programs / program.folder, tuple(shlex.split(program.command))
        return by_name


class Unending(Policy):
    """A race that goes on until its time is up, however clear the answer is."""

    def is_clear(self, complete: object) -> bool:
        return False


def record(asked: Asked) -> Iterator[Figure]:
    """Records races of each script against itself; yields the spread of their rounds."""
    path = _recorded("race-turns.jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {entry["script"] for entry in _lines(path)}
    for name, (folder, command) in asked.scripts.items():
        if name in done:
            continue
        policy = Unending(arms=(BASELINE, OTHER), seconds=60 * asked.minutes)
        with (
            ScriptLives.of(commands(command, command, folder)) as lives,
            open(os.devnull, "w", encoding="utf-8") as nowhere,
            contextlib.redirect_stdout(nowhere),
        ):
            log: list[Event] = []
            race.run(policy, lives, log)
        line: dict[str, Any] = {"script": name, "rounds": [_as_line(round_) for round_ in rounds_of(log)]}
        logs = Tally.of(rounds_of(log), OTHER).logs
        print(name, *(f"{value:+.3f}" for value in logs), flush=True)
        line["logs"] = logs
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    spread = [100 * statistics.stdev(entry["logs"]) for entry in _lines(path)]
    yield Figure(
        figure="spread of a round of equals",
        value=statistics.median(spread),
        low=min(spread),
        high=max(spread),
        unit="%",
        repeats=len(spread),
    )


def _as_line(round_: Round) -> Mapping[str, Any]:
    """Returns a round as plain values: for each arm, its start's seconds, and its turns."""
    return {
        "company": round_.is_in_company,
        "seconds": round(round_.ended_at - round_.began_at, 3),
        "lives": [
            {
                "start": round(life.started.seconds, 3),
                "turns": [
                    [round(turn.seconds, 4), turn.steps, turn.samples, round(turn.foreign, 2)]
                    for turn in life.turns
                ],
            }
            for _, life in sorted(round_.lives.items())
        ],
    }


def _recorded(name: str) -> Path:
    return device_folder(RESULTS) / name


def _lines(path: Path) -> list[Any]:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def _with_turns(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a line of `judge-rounds.jsonl`, which has means of rounds, as if each were of a single turn."""

    def process(log: float) -> Mapping[str, Any]:
        return {
            "start": line["seconds"] / 2 - 1 - WAKE_SECONDS,
            "turns": [[1.0, 1000, 1e6 * math.exp(log), 0.0]],
        }

    rounds = [{"company": True, "lives": [process(0.0), process(log)]} for log in line["logs"]]
    return {"script": line["script"], "rounds": rounds}


class RecordedLives:
    """Processes that take the turns of recorded rounds, in random order, with random signs.

    The two sides of a record are equal.
    """

    def __init__(self, rounds: Sequence[Mapping[str, Any]], planted: float, draw: random.Random) -> None:
        """Starts nothing yet.

        Args:
            planted: Logarithm of the second arm's true ratio.
        """
        self._rounds, self._planted, self._draw = rounds, planted, draw
        self._left: dict[int, list[Taken]] = {}
        self._slots: list[Mapping[str, Any]] = []
        self._company = True
        self.now = 0.0

    def start(self, life: int, start: Start) -> Sequence[Verified]:
        """Starts a recorded process."""
        if not self._slots:
            drawn = self._draw.choice(self._rounds)
            self._company = drawn["company"] is not False
            self._slots = self._draw.sample(drawn["lives"], 2)
        slot = self._slots.pop()
        self.now += slot["start"]
        faster = math.exp(self._planted if start.arm == OTHER else 0.0)
        self._left[life] = [(seconds / faster, *others) for seconds, *others in slot["turns"]]
        return ()

    def is_crowded_out(self, life: int) -> bool:
        """Returns False: no recorded process has failed."""
        return False

    def has_company(self) -> bool:
        """Returns whether both ran at the same time."""
        return self._company

    def turn(self, life: int) -> Taken | None:
        """Takes a recorded turn."""
        if not self._left[life]:
            return None
        turn = self._left[life].pop(0)
        self.now += turn[0] + WAKE_SECONDS
        return turn

    def end(self, life: int) -> list[Taken]:
        """Ends a recorded process."""
        return []

    def kill(self) -> None:
        """Does nothing."""

    def clock(self) -> float:
        """Returns the seconds that starts and turns have taken."""
        return self.now


def _compared(asked: Asked, planted: float) -> Iterator[SpeedComparison]:
    """Yields comparisons on recorded turns.

    Args:
        planted: Logarithm of the second version's true ratio.
    """
    for line in [
        *_lines(_recorded("race-turns.jsonl")),
        *map(_with_turns, _lines(_recorded("judge-rounds.jsonl"))),
    ]:
        draw = random.Random(line["script"])
        for number in range(asked.runs):
            lives = RecordedLives(line["rounds"], planted, draw)
            policy = Policy(arms=(BASELINE, OTHER), seconds=60 * asked.minutes, seed=number)
            log: list[Event] = []
            race.run(policy, lives, log, clock=lives.clock)
            yield SpeedComparison.of(Tally.of(rounds_of(log), OTHER))


def _share(what: str, count: int, runs: int, bar: str) -> Figure:
    share = 100 * count / runs
    return Figure(figure=what, value=share, low=share, high=share, unit="%", bar=bar, repeats=runs)


def equals(asked: Asked) -> Iterator[Figure]:
    """Yields how often a script is called faster or slower than itself."""
    compared = list(_compared(asked, 0.0))
    answers = Counter(comparison.answer for comparison in compared)
    runs, wrong = answers.total(), answers[Speed.FASTER] + answers[Speed.SLOWER]
    yield _share("equals called faster or slower", wrong, runs, "<= 5")
    yield _share("equals called the same", answers[Speed.SAME], runs, "")
    yield _share("equals that are not slower", sum(e.is_not_slower for e in compared), runs, "")


def differences(asked: Asked) -> Iterator[Figure]:
    """Yields how often planted differences are found, and with the wrong sign."""
    for percent, bar in ((10, ">= 95"), (3, ">= 60")):
        compared = list(_compared(asked, -math.log(1 + percent / 100)))
        answers = Counter(comparison.answer for comparison in compared)
        runs = answers.total()
        yield _share(f"{percent}% slower, found", answers[Speed.SLOWER], runs, bar)
        yield _share(f"{percent}% slower, called faster", answers[Speed.FASTER], runs, "<= 0")
        passed = sum(comparison.is_not_slower for comparison in compared)
        yield _share(f"{percent}% slower, but not slower as required", passed, runs, "")


def live(asked: Asked) -> Iterator[Figure]:
    """Yields the same for real runs: steps that take 10% longer, once for each script."""
    hits = runs = 0
    for folder, command in asked.scripts.values():
        if command[0] == "torchrun":
            continue
        after = (command[0], CHANGED, "slower", "1.1", *command[1:])
        compared = compare(commands(command, after, folder), 60 * asked.minutes, lambda _: None)
        print(
            f"{' '.join(after[1:])}: {compared.answer} {compared.ratio:.3f}x"
            f" [{compared.low:.3f}, {compared.high:.3f}] {len(compared.before)} rounds",
            flush=True,
        )
        hits += compared.answer is Speed.SLOWER
        runs += 1
    yield _share("live: 10% slower, found", hits, runs, ">= 90")


def beside(asked: Asked) -> Iterator[Figure]:
    """Yields the median seconds of a judgement, of this checkout over those of another one.

    Run again, it goes on with the lines that there are.
    """
    assert asked.other is not None, "--other names the checkout"
    path, trees = _recorded("judge-beside.jsonl"), {"this": ROOT, "other": asked.other.resolve()}
    lines = _lines(path) if path.exists() else []
    for number in range(asked.runs):
        script = ("mlp.py", "lstm.py")[number % 2]
        for factor in (1.3, 1.1, 1.0):
            draw = random.Random(f"{number} {factor}")
            for tree in draw.sample(list(trees), len(trees)):
                key = {"number": number, "factor": factor, "tree": tree}
                if any(key.items() <= line.items() for line in lines):
                    continue
                lines.append({**key, "script": script, **_judged(trees[tree], script, factor)})
                print(json.dumps(lines[-1]), flush=True)
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
    for factor, bar in ((1.3, "<= 0.5"), (1.1, "<= 1"), (1.0, "<= 1")):
        took = [
            statistics.median(
                line["seconds"] for line in lines if line["factor"] == factor and line["tree"] == tree
            )
            for tree in trees
        ]
        yield Figure(
            figure=f"beside: seconds where steps take {factor:g}x as long, this / other",
            value=took[0] / took[1],
            low=took[0],
            high=took[1],
            bar=bar,
            repeats=asked.runs,
        )


def _judged(tree: Path, script: str, factor: float) -> Mapping[str, Any]:
    """Returns the seconds and the answer of a judgement by a checkout of sweeper."""
    after = f"python {CHANGED} slower {factor} {script}"
    command = ("judge", "--before", f"python {script}", "--after", after, "--json")
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "sweeper", *command],
        cwd=UNEDITED,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
    )
    answer = json.loads(done.stdout) if done.stdout.startswith("{") else {"error": done.stderr[-200:]}
    known = {name: answer.get(name) for name in ("speed", "losses", "error")}
    return {"seconds": round(time.monotonic() - began, 1), **known}


def wrong(_: Asked) -> Iterator[Figure]:
    """Yields how many of the changes that are fast and wrong train the same, as far as `judge` sees."""
    lists = runpy.run_path(str(TUNING / "planted.py"))
    accepted = count = 0
    for which, script in WRONG.items():
        before = Arm(name="before", command=(sys.executable, *script), folder=TUNING)
        baseline = Baseline(before, measure_version(before))
        for change in lists[which]:
            planted = f"{TUNING / 'planted.py'}:{change.__name__}"
            command = (sys.executable, CHANGED, planted, *script)
            after = Arm(name="after", command=command, folder=TUNING)
            comparison = baseline.compare(after, Claim(is_version=True))
            print(f"{change.__name__}: {comparison.answer} {comparison.why}", flush=True)
            accepted += comparison.is_same
            count += 1
    yield Figure(
        figure=f"wrong changes accepted, of {count}",
        value=float(accepted),
        low=float(accepted),
        high=float(accepted),
        bar="<= 0",
        repeats=1,
    )


PARTS: Mapping[str, Callable[[Asked], Iterator[Figure]]] = {
    "record": record,
    "equals": equals,
    "differences": differences,
    "live": live,
    "beside": beside,
    "wrong": wrong,
}


def main() -> None:
    """Runs the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--programs", type=Path, help="the folder with the public programs")
    parser.add_argument("--python", type=Path, default=Path(sys.executable).parent, help="of their `python`")
    parser.add_argument("--other", type=Path, help="another checkout of sweeper, for `beside`")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    asked = parser.parse_args()
    if unknown := {*asked.parts} - {*PARTS}:
        parser.error(f"a part must be one of {', '.join(PARTS)}, but got {', '.join(sorted(unknown))}")
    os.environ["PATH"] = f"{asked.python}:{os.environ['PATH']}"
    programs = asked.programs.resolve() if asked.programs else None
    for part in asked.parts or [part for part in PARTS if part != "beside" or asked.other]:
        publish(
            "judge",
            list(PARTS[part](Asked(asked.runs, asked.minutes, programs, asked.other))),
            f"benchmarks/judge.py {part} --runs {asked.runs} --minutes {asked.minutes:g}",
        )


if __name__ == "__main__":
    main()
