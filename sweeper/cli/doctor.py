"""`sweeper doctor`: examines this machine and prints the result."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from sweeper.cli.exit_codes import FAILED
from sweeper.cli.options import Home, Json
from sweeper.cli.screen import console, print_json, prose, say
from sweeper.core.home import DEFAULT_HOME
from sweeper.doctor import Ceiling, Examination, State, examine, make_report
from sweeper.errors import UserError
from sweeper.system.files import check_out, write_json

HOLDS = (
    "It holds these checks and figures and what NVML reports, but nothing private: no paths, names of users "
    "or hosts, serial numbers, UUIDs, values of variables or code. Read it, and send it back."
)
_STYLES = {State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red"}
_LARGER = {"GFLOP/s": "TFLOP/s"}


def doctor(
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="[FILE]",
            help="Also write a JSON file to send back, with nothing private. Default: sweeper-doctor.json.",
        ),
    ] = None,
    home: Home = DEFAULT_HOME,
    as_json: Json = False,
) -> None:
    """Check whether this machine is fit for sweeps, and measure what it can do.

    Takes 10 to 60 s, with or without a GPU.

    Exits with 1 if a check failed, and prints a remedy for each; warnings are allowed.

    --json: {"ok": bool, "checks": [{"name", "state": "ok"|"warn"|"fail", "text", "remedy"}],
    "ceilings": [{"name", "value", "unit"}]}; ceilings are named cpu.matmul_fp32, cuda:0.memory_copy,
    loader.rows, and so on; those that were not measured are absent.

    Example: sweeper doctor
    """
    out = console(stderr=as_json)
    if report is not None:
        check_out(report, "--report")
    with _waiting(out, as_json):
        examination = examine(home)
    if as_json:
        print_json({"ok": examination.ok, "checks": examination.checks, "ceilings": examination.ceilings})
    else:
        _print(out, examination)
    if report is not None:
        _write(report, examination)
        prose(out, f"Report:  {report}. {HOLDS}")
    raise typer.Exit(0 if examination.ok else FAILED)


def _write(path: Path, examination: Examination) -> None:
    try:
        write_json(path, make_report(examination))
    except OSError as error:
        raise UserError(
            f"`--report` must be a file that can be written, but {str(path)!r} cannot: {error.strerror}."
        ) from error


def _waiting(out: Console, as_json: bool) -> contextlib.AbstractContextManager[object]:
    if as_json or not out.is_terminal:
        return contextlib.nullcontext()
    return out.status("Checking this machine and measuring what it can do (about 15 s) ...")


def _print(out: Console, examination: Examination) -> None:
    say(out, decision(examination))
    width = max(len(check.name) for check in examination.checks)
    for check in examination.checks:
        head = Text.assemble(
            "  ", (f"{check.state.value:<5}", _STYLES[check.state]), f"{check.name:<{width}}  "
        )
        _say(out, head, check.text)
        if check.remedy:
            _say(out, Text(" " * (width + 9)), f"-> {check.remedy}.")
    if not examination.ceilings:
        return
    out.print("Measured ceilings:")
    for group in dict.fromkeys(ceiling.name.partition(".")[0] for ceiling in examination.ceilings):
        members = [ceiling for ceiling in examination.ceilings if ceiling.name.startswith(f"{group}.")]
        device = f"{examination.devices[group]}: " if group in examination.devices else ""
        shown = ", ".join(f"{one.name.partition('.')[2].replace('_', ' ')} {amount(one)}" for one in members)
        _say(out, Text(f"  {group:<{width + 7}}"), f"{device}{shown}{_advice(members)}")


def _say(out: Console, head: Text, body: str) -> None:
    """Prints a line; wraps it with a hanging indent on a terminal."""
    room = max(40, out.width - len(head))
    first, *more = textwrap.wrap(body, room, break_long_words=False) if out.is_terminal else [body]
    out.print(head + Text(first), soft_wrap=True)
    for line in more:
        out.print(Text(" " * len(head) + line), soft_wrap=True)


def _advice(members: Sequence[Ceiling]) -> str:
    """Returns advice on loading single rows; empty for other ceilings."""
    rates = {ceiling.name: ceiling.value for ceiling in members}
    rows, batches = rates.get("loader.rows"), rates.get("loader.whole_batches")
    if not rows or not batches or batches < 2 * rows:
        return ""
    return f": one row at a time is {batches / rows:.0f}x slower (`loader.kind`)"


def decision(examination: Examination) -> str:
    """Returns the first line: whether the machine is fit, and what failed."""
    failed, warned = examination.of(State.FAIL), examination.of(State.WARN)
    warnings = f"{len(warned)} warning{'s' if len(warned) != 1 else ''}"
    after = f"(checked in {examination.seconds:.0f} s)"
    if failed:
        names = ", ".join(dict.fromkeys(check.name for check in failed))
        return f"This machine is not fit for sweeps: {names} failed, {warnings} {after}."
    return f"This machine is fit for sweeps{f', with {warnings}' if warned else ''} {after}."


def amount(ceiling: Ceiling) -> str:
    """Returns a figure with its unit, with three significant digits."""
    value, unit = ceiling.value, ceiling.unit
    if unit in _LARGER and value >= 1000:
        value, unit = value / 1000, _LARGER[unit]
    factor, prefix = next((scale for scale in ((1e6, "M"), (1e3, "k")) if value >= scale[0]), (1.0, ""))
    return f"{value / factor:.3g}{prefix} {unit}".replace(" 1/", "/")
