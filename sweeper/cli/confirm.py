"""`sweeper confirm`: measures a winner again and prints the result."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from sweeper.cli import signals
from sweeper.cli.exit_codes import FAILED
from sweeper.cli.options import Home, Json, Name
from sweeper.cli.screen import Screen, console, print_json, say
from sweeper.core.home import DEFAULT_HOME
from sweeper.core.metrics import round_to
from sweeper.errors import UserError
from sweeper.results.numbers.confirmation import Ratio
from sweeper.sweep.folder.catalog import find_sweep
from sweeper.sweep.phases.reconfirm import Reconfirmation, reconfirm

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def confirm(
    name: Name,
    home: Home = DEFAULT_HOME,
    soak: Annotated[
        str | None,
        typer.Option(
            "--soak", metavar="5m", help="Then run the winner for this long and check that its speed holds."
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", min=0.0, help="Longest time, without --soak."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure a sweep's winner against its baseline again.

    The sweep's own result does not change.

    Exits with 1 if the winner is no longer shown to be faster.

    --json: {"name", "number", "holds", "before": {"ratio", "low", "high", "throughput"},
    "now": {...} | null, "soak": {"seconds", "throughput", "held"} | null}

    Example: sweeper confirm stocks-a10 --soak 5m
    """
    length = duration(soak) if soak is not None else 0.0
    if find_sweep(home, name).spec().execution.is_remote:
        signals.allow_cluster()
    # Only the JSON goes to standard output.
    with Screen(console(stderr=as_json)) as screen:
        again = reconfirm(home, name, screen, soak_seconds=length, minutes=minutes)
    if as_json:
        print_json(_json(again))
    else:
        say(console(), *again.lines)
    raise typer.Exit(0 if again.holds else FAILED)


def duration(text: str) -> float:
    """Returns the seconds of `90`, `90s`, `5m` or `1h`.

    Raises:
        UserError: It is none of these, or 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    length = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not length:
        raise UserError(f"`--soak` must be a time such as 90s, 5m or 1h, but got {text!r}.")
    return length


def _json(reconfirmation: Reconfirmation) -> dict[str, Any]:
    return {
        "name": reconfirmation.name,
        "number": reconfirmation.number,
        "holds": reconfirmation.holds,
        "before": _ratio(reconfirmation.before),
        "now": _ratio(reconfirmation.now),
        "soak": reconfirmation.soak,
    }


def _ratio(ratio: Ratio | None) -> dict[str, float] | None:
    if ratio is None:
        return None
    return {key: round_to(getattr(ratio, key), 4) for key in ("ratio", "low", "high", "throughput")}
