"""`sweeper run --dry-run`: prints what a sweep would do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sweeper.analysis.formatting import counted
from sweeper.analysis.labels import label, run_name
from sweeper.cli.check import space_lines
from sweeper.cli.screen import console, say
from sweeper.spec import load
from sweeper.sweep.dry_run import Plan, dry_run
from sweeper.sweep.store.load import varied


def dry_run_command(space: Path, overrides: list[str], home: Path, *, new: bool) -> int:
    """Prints what a sweep would do; returns the exit code."""
    say(console(), *plan_lines(dry_run(home, load(space, overrides), new=new)))
    return 0


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yields a plan line by line."""
    spec, names = plan.spec, varied(plan.spec)
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
        yield f"  {run_name(number, 'search', config, names)}"
    yield f"Duration without data preparation: {expected(plan)}."
    if plan.script:
        yield f"At most {plan.at_once} jobs run at a time, each with this script:"
        yield from (f"  {line}" for line in plan.script.splitlines())


def expected(plan: Plan) -> str:
    """Returns the expected duration of a sweep, as far as its settings show it."""
    about = f"about {_minutes(plan.minutes)}"
    if plan.at_most_minutes is None:
        return f"{about}; no limit is set (`search.minutes`)"
    return f"{about}, at most {plan.at_most_minutes:g}"


def _minutes(value: float) -> str:
    rounded = f"{value:.1f}" if value < 2 else f"{value:.0f}"
    return counted(float(rounded), "minute")
