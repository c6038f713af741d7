"""`sweeper check`: validates a search space and shows what it searches."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Annotated

import typer

from sweeper.cli.options import Home, Json, Sets, Space
from sweeper.cli.screen import console, say
from sweeper.core.home import DEFAULT_HOME
from sweeper.core.launchers import find_installed
from sweeper.core.registry import resolve
from sweeper.errors import UserError
from sweeper.results.formatting import count_of
from sweeper.schema import CategoricalParameter, SweepSpec, load
from sweeper.schema.space import Bounds, Condition
from sweeper.sweep.start.setup import device_model
from sweeper.sweep.workloads import fingerprint


def check(
    space: Space,
    overrides: Sets = None,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep",
            help="Also prepare a pipeline's data and take two steps, or run a script for a few seconds.",
        ),
    ] = False,
    home: Home = DEFAULT_HOME,
    as_json: Json = False,
) -> None:
    """Validate a search space and show what it searches.

    Lists every mistake. Runs nothing without --deep.

    --deep prepares a pipeline's data (the sweep reuses it from the state folder), takes two
    training steps of the baseline and of the largest configuration, and prints samples, batch,
    parameters, loss and memory. For a script it shows what was read from its output. Exits with 1
    if that fails.

    --json, with --deep: {"name", "device", "room_gib", "synthetic", "notes", "left_out", "resident",
    "baseline": {"config", "train_samples", "val_samples", "data_bytes", "batch": {name: {"shape", "dtype"}},
    "batch_bytes", "parameters", "losses", "step_seconds", "peak_gib"} | null, "on_gpu": bool,
    "gpu": {"checked": [configurations], "findings": [{"effect": "fails"|"waits"|"unknown", "part", "place",
    "what"}]}, "largest": {"config", "steps": [as the baseline], "expected_gib", "not_run"} | null, "failure"}

    For a script: {"device", "outcome": {as in a trial's outcome.json}, "record": {as in its script.json}}

    Example: sweeper check a10 --deep
    """
    if as_json and not deep:
        raise UserError("`--json` needs `--deep`.")
    spec = load(space, overrides or [])
    device = device_model(spec.execution)
    fingerprint(spec, device)
    find_installed(spec.execution.launcher)
    if not as_json:
        subject = shlex.join(spec.traits.words(spec))
        say(console(), f"{space} is valid: {spec.name}, {subject}, on {device}.", *space_lines(spec))
    if deep and spec.traits.check:
        raise typer.Exit(resolve(spec.traits.check)(spec, home, as_json=as_json))


def space_lines(spec: SweepSpec, size: int | None = None) -> Iterator[str]:
    """Yields a line per searched parameter, then one with objectives, size and budget.

    Args:
        size: Number of distinct configurations, if counted.
    """
    for name, parameter in spec.space.items():
        if isinstance(parameter, CategoricalParameter):
            values = ", ".join(map(_value_text, parameter.choices))
        else:
            values = f"{parameter.low} to {parameter.high}{' (log)' if parameter.log else ''}"
        when = " and ".join(
            f"{target} is {_condition(condition)}" for target, condition in parameter.when.items()
        )
        yield f"  {name}: {values}{f'  when {when}' if when else ''}"
    combined = spec.size()
    if size is not None:
        count = f"{size:,} distinct configurations"
    else:
        count = f"{'unlimited' if combined is None else f'{combined:,}'} combinations"
    goals = ", ".join(f"{goal.direction} {goal.metric}" for goal in spec.objectives)
    budget = count_of(spec.search.trials, "trial")
    if spec.search.minutes is not None:
        budget += f" or {count_of(spec.search.minutes, 'minute')}, including confirmation"
    first = f"{1 + len(spec.also_try)} reference trial{'s' if spec.also_try else ''} first"
    yield f"  {goals}; {count}; {budget}; {first}."


def _condition(condition: Condition) -> str:
    if isinstance(condition, Bounds):
        ends = (("at least", condition.min), ("at most", condition.max))
        return " and ".join(f"{word} {end}" for word, end in ends if end is not None)
    return (
        " or ".join(map(_value_text, condition)) if isinstance(condition, tuple) else _value_text(condition)
    )


def _value_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
