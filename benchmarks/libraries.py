"""What works with each library: a training in each is watched, tuned, judged, patched and swept.

python benchmarks/libraries.py [--python FOLDER] [--only NAME,NAME] [--home DIR]
                                                          writes benchmarks/results/<device>/libraries.json

`docs/limits.md` has the answers as a table. What fails has no figure, and is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from common import Figure, publish
from tune import UNEDITED, sweeper, tuned

LIBRARIES = {
    "Hugging Face Trainer": ("python", "trainer.py"),
    "Lightning": ("python", "light.py"),
    "accelerate": ("python", "accelerated.py"),
    "torchrun": ("torchrun", "--nproc-per-node=2", "ranks.py"),
    "Hydra": ("python", "configured.py"),
}
TUNE_MINUTES, JUDGE_MINUTES = 1.5, 1.0
MAX_SECONDS = 600
SPACE = """\
name: {name}
command: {command}
script: {{env: {{OMP_NUM_THREADS: "{{threads}}"}}, samples_per_step: 64}}
space: {{threads: {{type: categorical, choices: [1, 2]}}}}
baseline: {{threads: 1}}
measure: {{window_seconds: 0.5, repeats: 1, warmup_cap_seconds: 1}}
search: {{trials: 2, minutes: 2}}
"""


def run(*words: str) -> str:
    """Returns what a command of sweeper prints, beside the scripts."""
    arguments, where = sweeper(*words, folder=UNEDITED)
    done = subprocess.run(arguments, **where, capture_output=True, text=True, timeout=MAX_SECONDS)
    if done.returncode:
        print(f"{' '.join(words)}: exit status {done.returncode}: {done.stderr[-400:]}", flush=True)
    return str(done.stdout)


def figure(name: str, value: float, low: float, high: float, unit: str = "") -> Figure:
    return Figure(figure=name, value=value, low=low, high=high, unit=unit, repeats=1)


def watched(name: str, command: Sequence[str], home: Path) -> Iterator[Figure]:
    """Yields the milliseconds of a step that `watch` has seen."""
    said = run("watch", "--json", "--", *command)
    if said.startswith("{") and (step_ms := json.loads(said)["step_ms"]):
        yield figure(f"{name}: watch, a step", step_ms, step_ms, step_ms, "ms")


def raced(name: str, command: Sequence[str], home: Path) -> Iterator[Figure]:
    """Yields what a tune brings."""
    tune = tuned(_sweep(command), command, UNEDITED, home, {}, minutes=TUNE_MINUTES)
    print(f"{name}: {tune.changes or 'nothing'}; {tune.verified.get('kind', '')}", flush=True)
    if tune.verified:
        value, low, high = tune.ratio
        yield figure(f"{name}: tune, tuned / as it is", value, low, high, "x")


def patched(name: str, command: Sequence[str], home: Path) -> Iterator[Figure]:
    """Yields how fast the script is with the patch of what won."""
    said = run("export", _sweep(command), "--format", "patch", "--home", str(home))
    print(said, flush=True)
    if match := re.search(r"without sweeper: ([\d.]+)x .*?\[([\d.]+), ([\d.]+)\]", said):
        value, low, high = map(float, match.groups())
        yield figure(f"{name}: patch, patched / as it is", value, low, high, "x")


def judged(name: str, command: Sequence[str], home: Path) -> Iterator[Figure]:
    """Yields the ratio of the script to itself, if `judge` says that both train the same."""
    words = " ".join(command)
    said = run("judge", "--json", f"--minutes={JUDGE_MINUTES:g}", "--before", words, "--after", words)
    tree = json.loads(said) if said.startswith("{") else {}
    print(f"{name}: judge: {tree.get('speed')}, losses {tree.get('losses')}", flush=True)
    if tree.get("losses") == "equal":
        yield figure(f"{name}: judge, itself", tree["ratio"], tree["low"], tree["high"], "x")


def swept(name: str, command: Sequence[str], home: Path) -> Iterator[Figure]:
    """Yields how many trials of a sweep were measured."""
    sweep = f"sweep-{_stem(command)}"
    path = home / f"{sweep}.yaml"
    path.write_text(SPACE.format(name=sweep, command=json.dumps([*command])), encoding="utf-8")
    arguments, where = sweeper("run", str(path), "--home", str(home), folder=UNEDITED)
    subprocess.run(arguments, **where, timeout=MAX_SECONDS, stdout=sys.stderr)
    said = run("show", sweep, "--json", "--home", str(home))
    trials = json.loads(said)["trials"] if said.startswith("{") else []
    print([trial["outcome"] for trial in trials], flush=True)
    if count := sum(trial["outcome"] == "measured" for trial in trials):
        yield figure(f"{name}: sweep, trials measured", count, count, count)


def _stem(command: Sequence[str]) -> str:
    return command[-1].removesuffix(".py")


def _sweep(command: Sequence[str]) -> str:
    return f"tune-{_stem(command)}"


def main() -> None:
    """Runs all parts for each library."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", type=Path, default=Path(sys.executable).parent)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--home", type=Path, help="where the sweeps are kept")
    asked = parser.parse_args()
    os.environ["PATH"] = f"{asked.python}:{os.environ['PATH']}"
    home = (asked.home or Path(tempfile.mkdtemp(prefix="sweeper-libraries-"))).resolve()
    home.mkdir(parents=True, exist_ok=True)
    for name, command in LIBRARIES.items():
        if asked.only and name not in asked.only.split(","):
            continue
        figures = [
            one for part in (watched, raced, patched, judged, swept) for one in part(name, command, home)
        ]
        publish("libraries", figures, "benchmarks/libraries.py")


if __name__ == "__main__":
    main()
