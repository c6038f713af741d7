"""`sweeper check --deep` for a script: shows what was read from its output."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from sweeper.cli.exit_codes import FAILED
from sweeper.cli.screen import console, print_json, say
from sweeper.core.measurement import Failure
from sweeper.core.quantities import QUANTITIES
from sweeper.results.formatting import figure, rate, seconds
from sweeper.scaffold.check_script import ScriptCheck, suggest_pattern, try_out
from sweeper.schema import SweepSpec


def check_script_deep(spec: SweepSpec, _home: Path, *, as_json: bool) -> int:
    """Runs the baseline for a few seconds and prints what was read; returns the exit code."""
    check = try_out(spec)
    if as_json:
        print_json(check)
    else:
        say(console(), *check_lines(check))
    return FAILED if isinstance(check.outcome, Failure) else 0


def check_lines(check: ScriptCheck) -> Iterator[str]:
    """Yields what ran, what was read from its output, and the result."""
    outcome, heard = check.outcome, check.record.get("heard", {})
    if "command" in check.record:
        yield f"Ran {shlex.join(check.record['command'])} on {check.device}."
    for name, (value, line) in heard.get("understood", {}).items():
        yield f"  {QUANTITIES[name]:<26} {figure(value):<12} in: {line.strip()}"
    # A script whose steps torch reports need not print anything.
    if heard and not heard["understood"] and isinstance(outcome, Failure):
        yield f"  Nothing was recognised in {heard['num_lines']} lines of output. The last ones:"
        yield from (f"    {line}" for line in heard["last_lines"])
        if pattern := suggest_pattern(heard["last_lines"]):
            yield "  If the number counts steps, add this (if it counts samples, name the group `samples`):"
            quoted = pattern.replace("'", "''")
            yield f"    script: {{patterns: ['{quoted}']}}"
    if isinstance(outcome, Failure):
        yield f"{outcome.kind}: {outcome.message}"
        if heard.get("understood"):
            yield from (f"    {line}" for line in outcome.detail.splitlines()[-5:])
        return
    if per_step := heard.get("samples_per_step"):
        yield f"  Each step counts as {figure(per_step)} samples."
    startup = seconds(outcome.startup_seconds)
    yield f"{rate(outcome.throughput)}, reported by {outcome.reported_by}; start-up {startup}."
    yield from (f"  Left out: {part}." for part in outcome.exclusions)
    both = heard["meter_samples_per_s"], heard["output_samples_per_s"]
    if all(both):
        yield f"  The meter reports {rate(both[0])}, the output {rate(both[1])}."
