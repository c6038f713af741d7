"""Whether `sweeper judge` is right: equals, planted differences, and changes that are fast and wrong.

python benchmarks/judge.py [equals differences wrong] [--runs N] [--minutes M]
                                                          writes benchmarks/results/<device>/judge.json

equals        a script against itself: how often it is called faster or slower
differences   a script against itself with steps that take 10 and 3% longer
wrong         changes that are fast and wrong (tests/tuning/planted.py), as another command
"""

from __future__ import annotations

import argparse
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from common import Figure, publish

from sweeper.interventions.intervention import SINGLE
from sweeper.judging.arms import Arm, commands
from sweeper.judging.losses import Baseline
from sweeper.judging.speed import Speed, compare, measured

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
}
WRONG = {"WRONG": ("train.py",), "WRONG_CAREFUL": ("careful.py",), "WRONG_WORKERS": ("careful.py", "2")}


@dataclass(frozen=True)
class Asked:
    """The command line."""

    runs: int
    minutes: float


def _command(name: str, *before: str) -> tuple[str, ...]:
    words = SCRIPTS[name][1]
    start = ("torchrun", "--nproc-per-node=2") if name == "ranks" else (sys.executable,)
    return (*start, *before, *words)


def _answer(
    before: tuple[str, ...], after: tuple[str, ...], folder: Path, minutes: float, seed: int
) -> Speed:
    found = compare(commands(before, after, folder), time.monotonic() + 60 * minutes, lambda _: None, seed)
    print(
        f"{' '.join(after[1:])}: {found.answer} {found.ratio:.3f}x [{found.low:.3f}, {found.high:.3f}]"
        f" {len(found.before)} rounds",
        flush=True,
    )
    return found.answer


def _share(what: str, count: int, runs: int, bar: str) -> Figure:
    share = 100 * count / runs
    return Figure(figure=what, value=share, low=share, high=share, unit="%", bar=bar, repeats=runs)


def equals(asked: Asked) -> Iterator[Figure]:
    """Yields how often a script is told apart from itself."""
    wrong = runs = 0
    for name, (folder, _) in SCRIPTS.items():
        for turn in range(asked.runs):
            command = _command(name)
            wrong += _answer(command, command, folder, asked.minutes, turn) in (Speed.FASTER, Speed.SLOWER)
            runs += 1
    yield _share("equals called faster or slower", wrong, runs, "<= 5")


def differences(asked: Asked) -> Iterator[Figure]:
    """Yields how often planted differences are found, and with the wrong sign."""
    for percent, bar in ((10, ">= 90"), (3, ">= 50")):
        found = opposite = runs = 0
        for name, (folder, _) in SCRIPTS.items():
            if name == "ranks":
                continue
            for turn in range(asked.runs):
                after = _command(name, CHANGED, "slower", str(1 + percent / 100))
                answer = _answer(_command(name), after, folder, asked.minutes, turn)
                found += answer is Speed.SLOWER
                opposite += answer is Speed.FASTER
                runs += 1
        yield _share(f"{percent}% slower, found", found, runs, bar)
        yield _share(f"{percent}% slower, called faster", opposite, runs, "<= 0")


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
    "equals": equals,
    "differences": differences,
    "wrong": wrong,
}


def main() -> None:
    """Runs the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    asked = parser.parse_args()
    if unknown := {*asked.parts} - {*PARTS}:
        parser.error(f"a part must be one of {', '.join(PARTS)}, but got {', '.join(sorted(unknown))}")
    for part in asked.parts or PARTS:
        publish(
            "judge",
            list(PARTS[part](Asked(runs=asked.runs, minutes=asked.minutes))),
            f"benchmarks/judge.py {part} --runs {asked.runs} --minutes {asked.minutes:g}",
        )


if __name__ == "__main__":
    main()
