"""Whether `sweeper judge` is right: equals, planted differences, and changes that are fast and wrong.

python benchmarks/judge.py [record equals differences live wrong] [--runs N] [--minutes M] [--programs DIR]
                                                          writes benchmarks/results/<device>/judge.json

record        rounds of each script against itself, for five minutes: judge-rounds.jsonl
equals        on these, runs of each script against itself: how often it is called faster or slower
differences   the same with steps that take 10 and 3% longer
live          scripts whose steps take 10% longer, in real runs
wrong         changes that are fast and wrong (tests/tuning/planted.py), as another command

With --programs, public programs are judged, too (benchmarks/programs.py).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import runpy
import shlex
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import RESULTS, Figure, device_folder, publish
from programs import PROGRAMS

from sweeper.interventions.change import SINGLE
from sweeper.judging.arms import Arm, commands
from sweeper.judging.losses import Baseline
from sweeper.judging.speed import (
    MIN_ROUNDS,
    Compared,
    Round,
    Speed,
    compare,
    is_clear,
    log_ratio,
    measured,
    one_round,
    slices_of_next,
)

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
WRONG = {"WRONG": ("train.py",), "WRONG_CAREFUL": ("careful.py",), "WRONG_WORKERS": ("careful.py", "2")}


@dataclass(frozen=True)
class Asked:
    """The command line."""

    runs: int
    minutes: float
    programs: Path | None = None

    @property
    def scripts(self) -> Mapping[str, tuple[Path, tuple[str, ...]]]:
        """Folder and command of each script, by name."""
        found: dict[str, tuple[Path, tuple[str, ...]]] = {}
        for name, (folder, words) in SCRIPTS.items():
            start = ("torchrun", "--nproc-per-node=2") if name == "ranks" else (sys.executable,)
            found[name] = folder, (*start, *words)
        if self.programs is not None:
            for name in PUBLIC:
                program = PROGRAMS[name]
                found[name] = self.programs / program.folder, tuple(shlex.split(program.command))
        return found


def record(asked: Asked) -> Iterator[Figure]:
    """Records five minutes of rounds of each script against itself; yields their spread."""
    path = _recorded()
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {each["script"] for each in _lines()}
    for name, (folder, command) in asked.scripts.items():
        if name in done:
            continue
        arms = commands(command, command, folder)
        draw = random.Random(name)
        rounds: list[Round] = []
        began = time.monotonic()
        while len(rounds) < MIN_ROUNDS or time.monotonic() - began < 60 * asked.minutes:
            rounds.append(one_round(arms, draw, slices_of_next(rounds)))
        seconds = (time.monotonic() - began) / len(rounds)
        logs = [round(log_ratio(each), 5) for each in rounds]
        line = {"script": name, "seconds": round(seconds, 2), "logs": logs}
        print(json.dumps(line), flush=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    spread = [100 * statistics.stdev(each["logs"]) for each in _lines()]
    yield Figure(
        figure="spread of a round of equals",
        value=statistics.median(spread),
        low=min(spread),
        high=max(spread),
        unit="%",
        repeats=len(spread),
    )


def _recorded() -> Path:
    return device_folder(RESULTS) / "judge-rounds.jsonl"


def _lines() -> list[Any]:
    text = _recorded().read_text(encoding="utf-8") if _recorded().exists() else ""
    return [json.loads(each) for each in text.splitlines()]


def _compared(asked: Asked, planted: float) -> Iterator[Compared]:
    """Yields comparisons on recorded rounds, with random signs, since the two sides are equal.

    Args:
        planted: Logarithm of the second version's true ratio.
    """
    for line in _lines():
        draw = random.Random(line["script"])
        for _ in range(asked.runs):
            signs = (draw.choice((-1, 1)) for _ in line["logs"])
            whole = [sign * log + planted for sign, log in zip(signs, line["logs"], strict=True)]
            counts = range(MIN_ROUNDS, len(whole) + 1)
            yield Compared.of(whole[: next((n for n in counts if is_clear(whole[:n])), len(whole))])


def _share(what: str, count: int, runs: int, bar: str) -> Figure:
    share = 100 * count / runs
    return Figure(figure=what, value=share, low=share, high=share, unit="%", bar=bar, repeats=runs)


def equals(asked: Asked) -> Iterator[Figure]:
    """Yields how often a script is called faster or slower than itself."""
    compared = list(_compared(asked, 0.0))
    found = Counter(each.answer for each in compared)
    runs, wrong = found.total(), found[Speed.FASTER] + found[Speed.SLOWER]
    yield _share("equals called faster or slower", wrong, runs, "<= 5")
    yield _share("equals called the same", found[Speed.SAME], runs, "")
    yield _share("equals that are not slower", sum(e.is_not_slower for e in compared), runs, "")


def differences(asked: Asked) -> Iterator[Figure]:
    """Yields how often planted differences are found, and with the wrong sign."""
    for percent, bar in ((10, ">= 90"), (3, ">= 50")):
        compared = list(_compared(asked, -math.log(1 + percent / 100)))
        found = Counter(each.answer for each in compared)
        runs = found.total()
        yield _share(f"{percent}% slower, found", found[Speed.SLOWER], runs, bar)
        yield _share(f"{percent}% slower, called faster", found[Speed.FASTER], runs, "<= 0")
        passed = sum(each.is_not_slower for each in compared)
        yield _share(f"{percent}% slower, but not slower as required", passed, runs, "")


def live(asked: Asked) -> Iterator[Figure]:
    """Yields the same for real runs: steps that take 10% longer, once for each script."""
    found = runs = 0
    for folder, command in asked.scripts.values():
        if command[0] == "torchrun":
            continue
        after = (command[0], CHANGED, "slower", "1.1", *command[1:])
        deadline_s = time.monotonic() + 60 * asked.minutes
        compared = compare(commands(command, after, folder), deadline_s, lambda _: None, random.Random(0))
        print(
            f"{' '.join(after[1:])}: {compared.answer} {compared.ratio:.3f}x"
            f" [{compared.low:.3f}, {compared.high:.3f}] {len(compared.before)} rounds",
            flush=True,
        )
        found += compared.answer is Speed.SLOWER
        runs += 1
    yield _share("live: 10% slower, found", found, runs, ">= 90")


def wrong(_: Asked) -> Iterator[Figure]:
    """Yields how many of the changes that are fast and wrong train the same, as far as `judge` sees."""
    lists = runpy.run_path(str(TUNING / "planted.py"))
    accepted = count = 0
    for which, script in WRONG.items():
        before = Arm(name="before", command=(sys.executable, *script), folder=TUNING)
        baseline = Baseline(before, measured(before))
        for each in lists[which]:
            planted = f"{TUNING / 'planted.py'}:{each.__name__}"
            command = (sys.executable, CHANGED, planted, *script)
            found = baseline.compare(Arm(name="after", command=command, folder=TUNING), SINGLE)
            print(f"{each.__name__}: {found.answer} {found.why}", flush=True)
            accepted += found.is_same
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
    "wrong": wrong,
}


def main() -> None:
    """Runs the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--programs", type=Path, help="the folder with the public programs")
    parser.add_argument("--python", type=Path, default=Path(sys.executable).parent, help="of their `python`")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    asked = parser.parse_args()
    if unknown := {*asked.parts} - {*PARTS}:
        parser.error(f"a part must be one of {', '.join(PARTS)}, but got {', '.join(sorted(unknown))}")
    os.environ["PATH"] = f"{asked.python}:{os.environ['PATH']}"
    programs = asked.programs.resolve() if asked.programs else None
    for part in asked.parts or PARTS:
        publish(
            "judge",
            list(PARTS[part](Asked(runs=asked.runs, minutes=asked.minutes, programs=programs))),
            f"benchmarks/judge.py {part} --runs {asked.runs} --minutes {asked.minutes:g}",
        )


if __name__ == "__main__":
    main()
