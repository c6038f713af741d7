"""`sweeper run`: runs a sweep and prints its summary, or prints what it would do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from sweeper.cli import signals
from sweeper.cli.check import space_lines
from sweeper.cli.exit_codes import INTERRUPTED, PENDING
from sweeper.cli.options import Home, PassEnv, Sets, Space, Unprotected, Uri, gpu_index
from sweeper.cli.screen import Screen, console, say
from sweeper.cli.sensitivity import sensitivity_line
from sweeper.cli.summary import print_summary
from sweeper.core.home import DEFAULT_HOME, home_option
from sweeper.core.job import SEARCH_STAGE
from sweeper.launch.launcher import Launcher
from sweeper.results.formatting import count_of
from sweeper.results.numbers.labels import label, run_name
from sweeper.schema import SweepSpec, load
from sweeper.sweep.dry_run import Plan, dry_run
from sweeper.sweep.folder.load import LoadedSweep, varied_names
from sweeper.sweep.hints import look_command, place_lines, unsent_lines
from sweeper.sweep.run import run_sweep
from sweeper.sweep.start.launchers import launcher_for, other_models
from sweeper.tracking.mlflow import MlflowTracker, start_preload


def run(
    space: Space,
    overrides: Sets = None,
    home: Home = DEFAULT_HOME,
    new: Annotated[bool, typer.Option("--new", help="Start another sweep under a new name.")] = False,
    extend: Annotated[
        int, typer.Option("--extend", metavar="N", min=0, help="Add N trials to a finished sweep.")
    ] = 0,
    device: Annotated[
        str | None,
        typer.Option(
            "--device", metavar="cpu|cuda:N", help="Run on this device. Default: every GPU, else the CPU."
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            "--price",
            metavar="P",
            help="Price per hour of one GPU (or machine without one); the summary then has the run's price.",
        ),
    ] = None,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run and for how long; train nothing.")
    ] = False,
    unprotected: Unprotected = None,
    pass_env: PassEnv = None,
    uri: Uri = None,
) -> None:
    """Run a sweep, or continue one that was interrupted.

    Running the same command again never repeats a trial.

    Example: sweeper run a10 --set search.trials=20
    """
    chosen = [*(overrides or []), *device_override(device)]
    if price is not None:
        chosen.append(f"production.price_per_hour={price:g}")
    if dry:
        say(console(), *plan_lines(dry_run(home, load(space, chosen), new=new)))
        return
    raise typer.Exit(run_all_gpu_models(space, chosen, home, new=new, extend=extend, uri=uri))


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yields a plan line by line."""
    spec, names = plan.spec, varied_names(plan.spec)
    yield f"Dry run of {spec.name} on {plan.device}: nothing is trained or stored."
    if plan.existing:
        yield plan.existing
    yield "Search space:"
    yield from space_lines(spec, plan.size)
    if plan.removed:
        yield "Left out on this machine:"
        yield from (f"  {line}" for line in plan.removed)
    yield "Reference trials:"
    for number, config in enumerate(plan.references):
        yield f"  {number:03d} {'baseline: ' if number == 0 else ''}{label(config, names)}"
    yield "First configurations of the search:"
    for number, config in enumerate(plan.first, start=len(plan.references)):
        yield f"  {run_name(number, SEARCH_STAGE, config, names)}"
    yield f"Duration without data preparation: {expected_duration(plan)}."
    if plan.script:
        yield f"At most {plan.at_once} jobs run at a time, each with this script:"
        yield from (f"  {line}" for line in plan.script.splitlines())


def expected_duration(plan: Plan) -> str:
    """Returns the expected duration of a sweep, as far as its settings show it."""
    about = f"about {_minutes(plan.minutes)}"
    if plan.at_most_minutes is None:
        return f"{about}; no limit is set (`search.minutes`)"
    return f"{about}, at most {plan.at_most_minutes:g}"


def _minutes(value: float) -> str:
    rounded = f"{value:.1f}" if value < 2 else f"{value:.0f}"
    return count_of(float(rounded), "minute")


def device_override(device: str | None) -> list[str]:
    """Returns the override of `execution.gpus` that `--device` stands for.

    Raises:
        UserError: It is not a device.
    """
    if device is None:
        return []
    index = gpu_index(device)
    return ["execution.gpus=0" if index is None else f"execution.gpus=[{index}]"]


def _report(sweep: LoadedSweep, say: Callable[[str], None]) -> list[Path]:
    # Slow to import, and needed only at the end.
    from sweeper.report import files

    return files(sweep, say)


def run_all_gpu_models(
    space: Path, overrides: list[str], home: Path, *, new: bool, extend: int, uri: str | None = None
) -> int:
    """Runs a sweep and prints its summary; returns the exit code.

    With `same_gpu: false`, each further GPU model that turned up gets a sweep afterwards.
    """
    spec = load(space, overrides)
    if spec.execution.is_remote:
        signals.allow_cluster()
    code, folder = run_and_print(spec, home, new=new, extend=extend, uri=uri)
    for model in [] if spec.execution.same_gpu else other_models(folder):
        if code not in (0, PENDING):
            break
        print()
        suffix = re.sub(r"[^a-z0-9]+", "-", model.lower().removeprefix("nvidia ")).strip("-")
        named = spec.model_copy(update={"name": f"{spec.name}-{suffix}"})
        after, _ = run_and_print(named, home, new=new, extend=extend, uri=uri, model=model)
        code = after or code
    return code


def run_and_print(
    spec: SweepSpec,
    home: Path,
    *,
    new: bool,
    extend: int,
    uri: str | None,
    model: str = "",
) -> tuple[int, Path]:
    """Runs one sweep and prints its summary; returns the exit code and the folder.

    Args:
        model: The only device model that it runs on; by default, its first worker's.
    """
    tracker = MlflowTracker(home, uri)
    out = console()
    # MLflow takes longer to import than the server to start: import it in the background.
    start_preload()
    with Screen(out) as screen:

        def launch(folder: Path) -> Launcher:
            return launcher_for(folder, spec, model=model, say=screen.line)

        done = run_sweep(
            home,
            spec,
            tracker,
            screen,
            new=new,
            extend=extend,
            # The default launcher takes the model that the sweep began on, or its first worker's.
            launch=launch if model else None,
            finish=lambda sweep: _report(sweep, screen.line),
        )
    if not done.was_run:
        out.print(f"`{done.sweep.journal.name}` is already finished; nothing was run.")
    sweep = done.sweep
    line = sensitivity_line(sweep.sensitivity)
    look = look_command(tracker, uri, sweep.journal.name, home)
    print_summary(out, sweep.summary, home_option(home), [line] if line else [], look)
    say(out, *place_lines(sweep, tracker, home))
    if done.stopped:
        return INTERRUPTED, sweep.journal.folder
    unsent = unsent_lines(done, tracker, uri, home)
    say(out, *unsent)
    return PENDING if unsent else 0, sweep.journal.folder
