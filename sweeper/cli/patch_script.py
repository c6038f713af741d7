"""`sweeper export --format patch`: writes a tune's changes as a patch of the script's own files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from sweeper.analysis.formatting import interval
from sweeper.cli.screen import STDOUT, LiveScreen, console, prose
from sweeper.core.job import read_job
from sweeper.core.progress import TrialFailedError
from sweeper.core.template import arguments
from sweeper.errors import NothingFeasibleError, UserError
from sweeper.export.document import PROOF_FILE
from sweeper.interventions.loader import GATHERED, Loader
from sweeper.judging.speed import LEVEL
from sweeper.patching.edits import Made
from sweeper.patching.patch import Patch, make
from sweeper.sweep.store.catalog import cannot_write, find_sweep
from sweeper.sweep.store.load import LoadedSweep, load_sweep
from sweeper.system.files import write_atomic
from sweeper.tuning.steps import ONCE, Interval, rungs_of

FILE = "best.patch"
MINUTES = 3.0


def write_patch(home: Path, name: str, out: Path | None) -> None:
    """Writes the winner of a tune as a patch, if its gain holds without sweeper.

    Raises:
        UserError: The sweep is not a tune with a winner.
        NothingFeasibleError: The winner has no change that can be written, the script cannot be measured,
            or the patch is not shown to be faster.
    """
    sweep = load_sweep(find_sweep(home, name))
    made = _made(sweep)
    script = read_job(sweep.journal.trial_folder(0)).script
    assert script is not None
    command, folder = arguments(script.command, {}), Path(script.folder)
    path = out or sweep.journal.folder / FILE
    if path != STDOUT and (path.is_dir() or not path.parent.is_dir()):
        # Before minutes of measuring.
        raise UserError(f"`--out` must be a file in a folder that exists, but got {str(path)!r}.")
    screen = Console(stderr=True) if path == STDOUT else console()
    with LiveScreen(screen) as live:
        live.line(f"Writing {', '.join(f'{e.name} {e.value}' for e in made)} into a copy of {folder}.")
        try:
            found = make(command, folder, made, MINUTES, live.line)
        except TrialFailedError as error:
            raise NothingFeasibleError(f"the script cannot be measured: {error}") from error
    if not found.holds:
        why = "nothing of it can be written down" if not found.text else "it is not shown to be faster"
        raise NothingFeasibleError(f"`{name}` has no patch: {why}.")
    if path == STDOUT:
        print(found.text, end="")
        return
    try:
        write_atomic(path, found.text)
    except OSError as error:
        raise cannot_write(error, path.parent) from error
    for line in lines(found, path):
        prose(screen, line)


def lines(found: Patch, path: Path) -> Iterator[str]:
    """Yields the speed and the training of a patch that holds, and the command that applies it."""
    speed = found.speed
    assert speed is not None
    yield (
        f"Without sweeper, patched: {speed.ratio:.3g}x ({LEVEL:.0%} interval"
        f" {interval(speed.low, speed.high)}, {len(speed.before)} rounds)."
    )
    if found.training is not None:
        yield f"Its training is {found.training.answer} over {found.training.covers}."
    yield f"Apply for good: git apply {path}"


def _made(sweep: LoadedSweep) -> list[Made]:
    path = sweep.journal.folder / PROOF_FILE
    if not path.exists():
        raise UserError(
            f"`--format patch` needs a tune that has a winner, but {sweep.journal.name!r} is none."
            " Run `sweeper tune -- COMMAND` first."
        )
    proof: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if proof["fault"] or not proof["made"]:
        raise NothingFeasibleError(f"`{sweep.journal.name}` has no winner to write down.")
    device = sweep.about["device"]
    brought = {each.name: each.stacked or each.alone for each in rungs_of(sweep)}
    ratio = sweep.summary.ratio
    if len(proof["made"]) == 1 and ratio is not None:
        brought[proof["made"][0]["name"]] = ratio.ratio, ratio.low, ratio.high
    return [
        Made(comment=_comment(each, brought.get(each["name"]), device, len(proof["made"])), **_of(each))
        for each in proof["made"]
    ]


def _of(each: dict[str, Any]) -> dict[str, str]:
    return {key: each[key] for key in ("name", "value", "own")}


def _comment(each: dict[str, Any], brought: Interval | None, device: str, count: int) -> str:
    is_gathered = (each["name"], each["value"]) == (Loader.name, GATHERED)
    why = (
        "the dataset is loaded into memory once, and batches are indexed" if is_gathered else str(each["why"])
    )
    text = f"{why[:1].upper()}{why[1:]}"
    if brought is None:
        return f"{text}."
    ratio, low, high = brought
    sure = "" if (low, high) == ONCE else f" (95% interval {interval(low, high)})"
    with_others = "" if count == 1 else " beside the other changes"
    return f"{text}: {ratio:.3g}x as fast{sure}{with_others}, on {device}."
