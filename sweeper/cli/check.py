"""`check` and `run --dry-run`: what a search space asks for, and what a sweep would do."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from sweeper.analysis.labels import label, run_name
from sweeper.cli.screen import console
from sweeper.core.launchers import find_installed
from sweeper.spec import CategoricalParameter, SweepSpec, load
from sweeper.spec.space import Bounds, Condition
from sweeper.sweep.dry_run import Plan, dry_run
from sweeper.sweep.setup import device_model
from sweeper.sweep.store.fingerprint import fingerprint
from sweeper.sweep.store.load import varied
from sweeper.sweep.store.study_copy import check_storage


def check_command(space: Path, overrides: list[str], *, silent: bool = False) -> SweepSpec:
    """Prints what a search space asks for, and returns it; every mistake in it is raised."""
    spec = load(space, overrides)
    device = device_model(spec.execution)
    fingerprint(spec, device)
    check_storage(spec)
    find_installed(spec.execution.launcher)
    if silent:
        return spec
    out = console()
    subject = spec.pipeline or shlex.join(spec.command)
    out.print(Text(f"{space} is in order: {spec.name}, {subject}, on {device}."), soft_wrap=True)
    for line in space_lines(spec):
        out.print(Text(line), soft_wrap=True)
    return spec


def space_lines(spec: SweepSpec, size: int | None = None) -> Iterator[str]:
    """Yields what is searched, a line per name, and then goals, size and budget.

    Args:
        size: Distinct configurations, where they were counted.
    """
    for name, parameter in spec.space.items():
        if isinstance(parameter, CategoricalParameter):
            values = ", ".join(map(_shown, parameter.choices))
        else:
            values = f"{parameter.low} to {parameter.high}{' (log)' if parameter.log else ''}"
        when = " and ".join(f"{target} is {_condition(asked)}" for target, asked in parameter.when.items())
        yield f"  {name}: {values}{f'  when {when}' if when else ''}"
    combined = spec.size()
    if size is not None:
        count = f"{size:,} distinct configurations"
    else:
        count = f"{'more than any number of' if combined is None else f'{combined:,}'} combinations"
    goals = ", ".join(f"{goal.direction} {goal.metric}" for goal in spec.objectives)
    budget = f"{spec.search.trials} trials"
    if spec.search.minutes is not None:
        budget += f" or {spec.search.minutes:g} minutes, confirmation included"
    first = f"{1 + len(spec.also_try)} reference trial{'s' if spec.also_try else ''} first"
    yield f"  {goals}; {count}; {budget}; {first}."


def _condition(asked: Condition) -> str:
    if isinstance(asked, Bounds):
        ends = (("at least", asked.min), ("at most", asked.max))
        return " and ".join(f"{word} {end}" for word, end in ends if end is not None)
    return " or ".join(map(_shown, asked)) if isinstance(asked, tuple) else _shown(asked)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def dry_run_command(space: Path, overrides: list[str], home: Path, *, new: bool) -> int:
    """Prints what a sweep would do; returns the exit code."""
    plan = dry_run(home, load(space, overrides), new=new)
    out = console()
    for line in plan_lines(plan):
        out.print(Text(line), soft_wrap=True)
    return 0


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yields a plan in lines."""
    spec, names = plan.spec, varied(plan.spec)
    yield f"{spec.name} on {plan.device}. This is a dry run: nothing is trained, nothing is kept."
    if plan.existing:
        yield plan.existing
    yield "The space:"
    yield from space_lines(spec, plan.size)
    if plan.removed:
        yield "What is left out here:"
        yield from (f"  {line}" for line in plan.removed)
    yield "Measured as they are:"
    for number, config in enumerate(plan.references):
        yield f"  {number:03d} {'baseline: ' if number == 0 else ''}{label(config, names)}"
    yield "The first configurations, before anything is measured:"
    for number, config in enumerate(plan.first, start=len(plan.references)):
        yield f"  {run_name(number, 'search', config, names)}"
    yield f"It takes {expected(plan)}, without preparing the data."
    if plan.script:
        yield f"At most {plan.at_once} jobs at once, each with this script:"
        yield from (f"  {line}" for line in plan.script.splitlines())


def expected(plan: Plan) -> str:
    """Returns how long the sweep takes, as far as its settings say so."""
    about = f"about {_minutes(plan.minutes)}"
    if plan.at_most_minutes is None:
        return f"{about}, and no limit is set (`search.minutes`)"
    return f"{about}, at most {plan.at_most_minutes:g}"


def _minutes(value: float) -> str:
    rounded = f"{value:.1f}" if value < 2 else f"{value:.0f}"
    return f"{float(rounded):g} minute{'' if float(rounded) == 1 else 's'}"
