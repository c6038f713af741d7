"""`sweeper tune`: makes a training script faster without editing it, and proves that it trains the same."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from sweeper.analysis.bottleneck import MIN_COST, launch_share, verdict_of
from sweeper.cli.export import export_command
from sweeper.cli.gpus import gpus_for
from sweeper.cli.options import DEFAULT_HOME, Command, Home, PassEnv, Unprotected, Uri, home_option
from sweeper.cli.run import run_spec
from sweeper.cli.screen import LiveScreen, console, prose, rate
from sweeper.cli.tune_view import ladder_lines, names, nothing_lines
from sweeper.core.job import read_job
from sweeper.core.measurement import Measurement
from sweeper.core.progress import Silent, TrialFailedError
from sweeper.core.template import arguments
from sweeper.core.workload import script_of
from sweeper.errors import UserError
from sweeper.export.document import PROOF_FILE
from sweeper.interventions import takes_long
from sweeper.interventions.change import CLOSE, DRAWS, EXACT
from sweeper.interventions.kept import FOLDER as KEPT_FOLDER
from sweeper.interventions.loader import COLLATED, Loader
from sweeper.scaffold.command_space import help_of, propose
from sweeper.script.command_line import CommandLine, parted
from sweeper.script.watch import NO_PARAMETERS
from sweeper.script.watch import watch as watch_script
from sweeper.spec import SweepSpec, load
from sweeper.spec.rules import leads_elsewhere
from sweeper.sweep.bootstrap import shared_cache
from sweeper.sweep.store.catalog import cannot_write, find_sweep
from sweeper.sweep.store.fingerprint import digest_of_files_named, digest_of_scripts
from sweeper.sweep.store.load import LoadedSweep, load_sweep
from sweeper.system.environment import named, script_held_back_line
from sweeper.system.files import write_json
from sweeper.tuning import state
from sweeper.tuning.changes import TOO_LITTLE_TIME, ChangeValue, possible
from sweeper.tuning.proofs import Proofs
from sweeper.tuning.space import name_of, space, worth_their_time
from sweeper.tuning.steps import gains_of

FAILED = 1
_HOW = {
    EXACT: "equals the script's own in every bit",
    CLOSE: "equals the script's own but for rounding",
    DRAWS: "equals the script's own but for the random numbers, as with another seed",
    "races": "has the script's own batches and draws, and losses that differ about as much as its repeats do",
}
LONG_MINUTES = 10.0
"""Minutes from which what takes long to make, such as compiling, is tried even if launching costs little."""
MIN_MINUTES = 1.0
"""Minimum minutes for the search and the confirmation, however long the earlier steps took."""


def tune(
    command: Command,
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="M", min=0.1, help="Time limit for everything.")
    ] = 5.0,
    with_flags: Annotated[
        bool, typer.Option("--with-flags", help="Also search the script's own options that are recognised.")
    ] = False,
    allow_batch_size: Annotated[
        bool,
        typer.Option("--allow-batch-size", help="Also search larger batches, within a limit on the loss."),
    ] = False,
    allow_other_draws: Annotated[
        bool,
        typer.Option("--allow-other-draws", help="Let more workers augment rows; the random numbers differ."),
    ] = False,
    changes: Annotated[
        Path | None,
        typer.Option("--changes", metavar="FILE.py", help="Your own changes, proved like all others."),
    ] = None,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be tried, and why; search nothing.")
    ] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the sweep. Default: tune-SCRIPT.")
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Start over, under a new name.")] = False,
    unprotected: Unprotected = None,
    pass_env: PassEnv = None,
    home: Home = DEFAULT_HOME,
    uri: Uri = None,
) -> None:
    """Make a training script faster without editing it, and prove that it trains the same.

    Changes are made at run time, to its loaders, its optimizer and its environment. Each is first proved by
    seeded runs that must equal the script's own; one that fails is left out. An ordinary sweep then finds
    which of them pay off, alone and together. The same command continues a tune that was interrupted.
    Exits with 1 if the script cannot be watched, or if the winning changes together do not train the same.

    Example: sweeper tune --minutes 5 -- python train.py --epochs 3
    """
    if changes is not None and not changes.is_file():
        raise UserError(f"`--changes` must be a Python file, but {str(changes)!r} is not.")
    script = parted(shlex.join(command)).script
    if script.endswith(".py") and not Path(script).is_file():
        raise UserError(
            f"the command must name an existing script, but {script!r} is not in {str(Path.cwd())!r}."
            " Change to its folder, or give its path."
        )
    if name:
        # A wrong name must not come to light after minutes of watching and proving.
        SweepSpec.from_dict({"name": name, "pipeline": "tune", "space": {}, "baseline": {}})
    if reason := leads_elsewhere(command):
        raise UserError(f"`sweeper tune` runs the command many times on this machine, but {reason}.")
    asked = Asked(
        command=tuple(command),
        minutes=minutes,
        with_flags=with_flags,
        allow_batch_size=allow_batch_size,
        allow_other_draws=allow_other_draws,
        changes=changes,
        name=name or name_of(script),
        new=new,
        home=home,
        uri=uri,
    )
    raise typer.Exit(tune_command(asked, dry=dry))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of the command line."""

    command: Sequence[str]
    minutes: float
    with_flags: bool
    allow_batch_size: bool
    allow_other_draws: bool
    changes: Path | None
    name: str
    new: bool
    home: Path
    uri: str | None

    @property
    def line(self) -> CommandLine:
        """The command, split into its parts."""
        return parted(shlex.join(self.command))

    def key(self) -> str:
        """Returns a digest of command, folder, files and options; an earlier run must share it to count."""
        own = self.changes.read_text(encoding="utf-8") if self.changes else ""
        options: list[object] = [self.with_flags, self.allow_batch_size, self.allow_other_draws]
        # The minutes decide which changes are worth their time.
        options.append(self.minutes)
        parts = [*self.command, os.getcwd(), digest_of_files_named(self.command), own, *map(str, options)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def tune_command(asked: Asked, *, dry: bool) -> int:
    """Watches, proves, searches, and prints how to use the result; returns the exit code."""
    began, out = time.monotonic(), console()
    out.file = sys.stdout
    if line := script_held_back_line(os.environ):
        prose(out, line)
    known = None if asked.new else state.read(asked.home, asked.name, asked.key())
    with gpus_for(asked.command, out) as said:
        if known is None:
            prose(out, duration_line(asked.minutes))
            watched = _watched(asked, out)
            if watched is None:
                return FAILED
            known = state.Found(key=asked.key(), watched=watched)
            _keep(asked, known)
        _say_watched(out, known.watched)
        try:
            return _made_faster(asked, known, began, out, said, dry=dry)
        finally:
            shutil.rmtree(shared_cache(asked.home) / KEPT_FOLDER, ignore_errors=True)


def duration_line(minutes: float) -> str:
    """Returns how long a tune takes, as far as that is known before the script has run."""
    if minutes <= MIN_MINUTES:
        return (
            "Watching and comparing come first and usually take 1 to 2 minutes; the search then takes"
            f" {MIN_MINUTES:g}."
        )
    return (
        f"This takes about {minutes:g} minutes; longer if watching and comparing, which come first, take more"
        f" than {minutes - MIN_MINUTES:g}, as the search has at least {MIN_MINUTES:g}."
    )


def _keep(asked: Asked, known: state.Found) -> None:
    try:
        state.write(asked.home, asked.name, known)
    except OSError as error:
        raise cannot_write(error, asked.home) from error


def _made_faster(
    asked: Asked, known: state.Found, began_s: float, out: Console, said: Sequence[str], *, dry: bool
) -> int:
    proofs = None
    if not known.changes:
        changes, proofs = _proved(asked, known.watched, out)
        changes = _worth_their_time(asked, known.watched, changes, began_s, out)
        known = dataclasses.replace(known, changes=changes)
        _keep(asked, known)
    else:
        _say_changes(out, known.changes)
    tried = [each for each in known.changes if not each.refused]
    if not tried and not asked.with_flags:
        prose(out, "Nothing is left to try.")
        return 0
    if dry:
        prose(out, f"A search would try {names(tried)}, alone and together.")
        return 0
    return _searched(asked, known, proofs, _minutes_left(asked, began_s), out, said)


def _minutes_left(asked: Asked, began_s: float) -> float:
    return max(MIN_MINUTES, asked.minutes - (time.monotonic() - began_s) / 60)


# -- watch ----------------------------------------------------------------------------------------


def _watched(asked: Asked, out: Console) -> Measurement | None:
    prose(out, "Watching the script as it is, then taking its steps apart.")
    with tempfile.TemporaryFile("w", encoding="utf-8") as log:
        try:
            with LiveScreen(out), contextlib.redirect_stdout(log):
                cache = shared_cache(asked.home)
                return watch_script(asked.command, Path.cwd(), Silent(), cache=cache)
        except TrialFailedError as error:
            prose(out, f"{error.kind}: {error}")
            return None


def _say_watched(out: Console, found: Measurement) -> None:
    verdict = verdict_of(found, NO_PARAMETERS)
    prose(out, f"  {rate(found.throughput)}, {found.step_ms:.3g} ms per step; {verdict.kind}: {verdict.why}.")
    for each in found.diagnosis.outside if found.diagnosis else ():
        prose(out, f"  Outside its folder, the script {each}. So does every run of this tune.")


# -- prove ----------------------------------------------------------------------------------------


def _proved(asked: Asked, watched: Measurement, out: Console) -> tuple[tuple[ChangeValue, ...], Proofs]:
    prose(out, "Proving the possible changes: comparing seeded runs with the script's own.")
    try:
        offered = possible(
            watched,
            asked.changes,
            allow_batch_size=asked.allow_batch_size,
            allow_other_draws=asked.allow_other_draws,
        )
    except (ValueError, OSError, SyntaxError, ImportError) as error:
        raise UserError(f"`--changes` must be a file of changes: {error}.") from error
    if asked.minutes < LONG_MINUTES and (launch_share(watched) or 0.0) < MIN_COST:
        why = f"{TOO_LITTLE_TIME} to make it; --minutes {LONG_MINUTES:g} would do"
        offered = [
            dataclasses.replace(change, refused=change.refused or why) if takes_long(change.name) else change
            for change in offered
        ]
    for each in offered:
        if each.refused:
            prose(out, f"  {each}: not tried, {each.refused}")
    proofs = _proofs(asked, watched)
    if proofs.unproved:
        prose(out, f"  Nothing can be proved: {proofs.unproved}.")
    return tuple(proofs.prove(offered, lambda line: prose(out, line))), proofs


def _worth_their_time(
    asked: Asked, watched: Measurement, changes: tuple[ChangeValue, ...], began_s: float, out: Console
) -> tuple[ChangeValue, ...]:
    if asked.allow_batch_size or asked.with_flags:
        return changes
    spent = (time.monotonic() - began_s) / 60
    kept = worth_their_time(changes, watched, _minutes_left(asked, began_s), spent)
    for before, after in zip(changes, kept, strict=True):
        if after.refused and not before.refused:
            prose(out, f"  {after}: left out, {after.refused}")
    return kept


def _proofs(asked: Asked, watched: Measurement) -> Proofs:
    steps = 1000 / watched.step_ms if watched.step_ms else 1.0
    return Proofs(
        asked.command,
        Path.cwd(),
        {},
        steps,
        on_gpu=watched.trains_on_gpu,
        start_seconds=watched.startup_seconds + watched.first_step_seconds,
        file=asked.changes,
        cache=shared_cache(asked.home),
    )


def _say_changes(out: Console, changes: Sequence[ChangeValue]) -> None:
    for each in changes:
        said = f"left out, {each.refused}" if each.refused else each.proof
        if said:
            prose(out, f"  {each}: {said}")


# -- search ---------------------------------------------------------------------------------------


def _searched(
    asked: Asked,
    known: state.Found,
    proofs: Proofs | None,
    minutes: float,
    out: Console,
    said: Sequence[str],
) -> int:
    tried = [each for each in known.changes if not each.refused]
    prose(out, f"Searching {names(tried)}: {minutes:.1f} minutes at most.")
    proposal = None
    if asked.with_flags:
        proposal = propose(asked.line, help_of(asked.line))
    file = str(asked.changes.resolve()) if asked.changes else ""
    plan = space(
        asked.command,
        tried,
        asked.name,
        minutes,
        env={},
        samples_per_s=_fastest(known.watched, tried),
        proposal=proposal,
        file=file,
        num_gpus=int(known.watched.observed.get("ranks", 1)) if known.watched.trains_on_gpu else 1,
    )
    if names_passed := named(os.environ):
        plan["execution"] = {"pass_env": list(names_passed)}
    spec = load(plan)
    code, folder = run_spec(spec, asked.home, new=asked.new, extend=0, uri=asked.uri, quiet=True, said=said)
    if code not in (0, 7):
        return code
    name = folder.name
    sweep = load_sweep(find_sweep(asked.home, name))
    winner = sweep.confirmation.winner
    out.print()
    for line in ladder_lines(gains_of(sweep), known.changes):
        prose(out, line)
    if winner is None:
        for line in nothing_lines(sweep, known.changes, asked.minutes):
            prose(out, line)
    if winner is None or sweep.state != "finished":
        return code
    if not _stack_holds(asked, known, proofs, sweep, out):
        return FAILED
    export_command(asked.home, name, "yaml", None, None)
    path, command = folder / "best.yaml", _command_of(sweep.journal.trial_folder(winner))
    out.print(
        Text(f"Use it:  sweeper exec {shlex.quote(str(path))} -- {shlex.join(command)}"), soft_wrap=True
    )
    out.print(
        Text(f"For good: sweeper export {name} --format patch{home_option(asked.home)}"), soft_wrap=True
    )
    out.print(Text(f"Details: sweeper show {name}{home_option(asked.home)}"), soft_wrap=True)
    return code


def _command_of(folder: Path) -> list[str]:
    """Returns the command of the trial in `folder`, with the values that `--with-flags` gave its options."""
    job = read_job(folder)
    return arguments(script_of(job).command, job.config.args or {})


def _fastest(watched: Measurement, tried: Sequence[ChangeValue]) -> float:
    """Returns the samples per second at which a loss can be measured, with a gathered loader if tried."""
    is_gathered = any(each.name == Loader.name and each.value in COLLATED for each in tried)
    on_one_batch = watched.diagnosis.device_samples_s if watched.diagnosis else None
    return max(watched.throughput, on_one_batch or 0.0) if is_gathered else watched.throughput


def _stack_holds(
    asked: Asked, known: state.Found, proofs: Proofs | None, sweep: LoadedSweep, out: Console
) -> bool:
    """Returns whether the winner's changes are proved together; writes the proof into the sweep's folder."""
    path = sweep.journal.folder / PROOF_FILE
    winner = sweep.summary.winner
    assert winner is not None
    values = winner.config.flatten()
    made = [each for each in known.changes if str(values.get(each.name)) == each.value]
    provable = [each for each in made if not each.changes_training]
    if not path.exists():
        proofs = proofs or _proofs(asked, known.watched)
        kind, fault = proofs.stack(provable) if provable else (EXACT, "")
        write_json(
            path,
            {
                "trial": winner.number,
                "changes": {each.name: each.value for each in made},
                "made": [
                    {"name": each.name, "value": each.value, "own": each.own, "why": each.why}
                    for each in made
                ],
                "kind": kind,
                "races": bool(proofs.races),
                "fault": fault,
                "covers": proofs.covers,
                "code": digest_of_scripts(asked.command),
            },
        )
    found = json.loads(path.read_text(encoding="utf-8"))
    if found["fault"]:
        prose(out, f"Together, the changes do not train the same: {found['fault']}. Nothing is exported.")
        return False
    if provable:
        how = _HOW["races" if found.get("races") else found["kind"]]
        prose(out, f"Proved together: the training {how}, over {found['covers']}.")
    for each in made:
        if each.changes_training:
            prose(out, f"Not provable, but within the limit on the loss: {each.name} {each.value}.")
    return True
