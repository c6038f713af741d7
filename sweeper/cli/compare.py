"""`sweeper compare`: prints two sweeps side by side and whether the second is slower."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sweeper.cli.exit_codes import FAILED
from sweeper.cli.options import Home, Json
from sweeper.cli.screen import console, print_json, say
from sweeper.core.config import Scalar
from sweeper.core.home import DEFAULT_HOME
from sweeper.core.metrics import round_to
from sweeper.core.record import TrialRecord
from sweeper.errors import UserError
from sweeper.results import words
from sweeper.results.comparison import MAX_MOVED, Comparison, SpeedRatio, SweepSide
from sweeper.results.comparison import compare as compare_sides
from sweeper.results.formatting import interval, loss, rate, seconds, times
from sweeper.results.verdict.bottleneck import verdict_on
from sweeper.sweep.folder.catalog import find_sweep, journal_at
from sweeper.sweep.folder.fingerprint import differences
from sweeper.sweep.folder.journal import Journal, sweeps_folder
from sweeper.sweep.folder.load import LoadedSweep, load_sweep

_DIGESTS = ("code", "data.files")
"""Fingerprint keys whose values only show whether they are equal."""
_HOW = {"confirmed": "", "unconfirmed": " (one trial)", "baseline": " (nothing is faster)"}


def compare(
    one: Annotated[str, typer.Argument(metavar="A", help="A sweep: NAME, HOME:NAME, or its folder.")],
    other: Annotated[str, typer.Argument(metavar="B", help="The sweep to compare with A.")],
    home: Home = DEFAULT_HOME,
    fail_if_slower: Annotated[
        str | None,
        typer.Option(
            "--fail-if-slower", metavar="5%", help="Exit with 1 if B is slower than A by more than this."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare two sweeps: two GPUs, or before and after a change.

    --fail-if-slower checks the baselines and the winners. Either counts as slower only if its whole
    95% interval is beyond the limit; an interval that crosses it is reported as not decided and does
    not fail.

    --json: {"a", "b": {"name", "state", "device", "torch", "synthetic", "baseline": {...} | null,
    "winner": {"number", "how", "throughput", "epoch_seconds", "rounds", "val_loss", "verdict", ...} | null},
    "unfair": [...], "differences": [...], "baseline", "winner", "gain": {"ratio", "low", "high",
    "epoch_ratio", "check": "slower"|"not slower"|"not decided"} | null, "configuration": {name: [A, B]},
    "searched": [...], "pairs": [{"a", "b", "ratio"}], "median"}. All ratios are B over A; "gain" compares
    the winners' ratios to their own baselines.

    Example: sweeper compare stocks-a10 stocks-a10-2 --fail-if-slower 5%
    """
    share = percentage(fail_if_slower) if fail_if_slower is not None else None
    comparison = compare_sides(
        side_of(load_sweep(sweep_at(home, one))), side_of(load_sweep(sweep_at(home, other)))
    )
    if as_json:
        print_json(comparison_json(comparison, share))
    else:
        out = console()
        for part in comparison_blocks(comparison):
            out.print(part, soft_wrap=isinstance(part, str))
        if share is not None:
            say(out, *check_lines(comparison, share))
    answers = [
        versus.is_slower(share)
        for versus in (comparison.baseline, comparison.winner)
        if versus and share is not None
    ]
    raise typer.Exit(FAILED if "slower" in answers else 0)


def percentage(text: str) -> float:
    """Returns `5%` as 0.05.

    Raises:
        UserError: `text` is not a percentage below 100.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?%", text)
    if match is None or float(match[1]) >= 100:
        raise UserError(f"`--fail-if-slower` must be a percentage below 100 such as 5%, but got {text!r}.")
    return float(match[1]) / 100


def sweep_at(home: Path, text: str) -> Journal:
    """Returns a sweep by its name, `HOME:NAME` or folder.

    Raises:
        UserError: There is no such sweep.
    """
    for journal in (journal_at(sweeps_folder(home) / text), journal_at(Path(os.path.expanduser(text)))):
        if journal.has_begun:
            return journal
    elsewhere, colon, name = text.rpartition(":")
    if colon:
        return find_sweep(Path(os.path.expanduser(elsewhere)), name)
    if os.sep in text:
        raise UserError(
            f"A sweep must be a name, HOME:NAME, or a folder with a sweep.yaml in it, but got {text!r}."
        )
    return find_sweep(home, text)


def side_of(sweep: LoadedSweep) -> SweepSide:
    """Returns a sweep as one side of a comparison."""
    return SweepSide(
        summary=sweep.summary,
        rounds=tuple(one.speeds for one in sweep.rounds),
        varied=sweep.varied_names(),
        fingerprint=sweep.journal.read_sweep_file()["fingerprint"],
    )


def changes(comparison: Comparison) -> list[str]:
    """Returns a line for each difference between the fingerprints."""
    lines = differences(comparison.a.fingerprint, comparison.b.fingerprint)
    keys = [line.partition(": ")[0] for line in lines]
    return [f"{key}: differs" if key in _DIGESTS else line for key, line in zip(keys, lines, strict=True)]


def comparison_blocks(comparison: Comparison) -> Iterator[str | Table]:
    """Yields the comparison as text and tables, the decision first."""
    yield _decision(comparison)
    for title, side in (("A", comparison.a), ("B", comparison.b)):
        summary, counts = side.summary, sum(side.summary.counts.values())
        torch = f"torch {side.fingerprint.get('torch', 'unknown')}"
        yield f"  {title}: {summary.name}, {summary.state}, {counts} trials, {summary.device}, {torch}"
    if comparison.unfair:
        yield "Caveats:"
    yield from (f"  {line}" for line in comparison.unfair)
    yield ""
    yield _figures(comparison)
    if comparison.gain is not None:
        yield f"B / A with {words.INTERVAL}s (Welch) over confirmation rounds. They include any change in the"
        yield "machine between the two sweeps; `vs its baseline` does not."
    yield ""
    if comparison.winner is not None:
        yield from _configuration(comparison)
        yield ""
    yield from _trials(comparison)
    changed = changes(comparison)
    yield "Other differences (A -> B):" if changed else "Code, data, space and device are the same."
    yield from (f"  {line}" for line in changed)


def _decision(comparison: Comparison) -> str:
    a, b, versus = comparison.a.best, comparison.b.best, comparison.winner
    if a is None or b is None or versus is None:
        without = [title for title, best in (("A", a), ("B", b)) if best is None]
        return f"Nothing to compare: {' and '.join(without)} measured no baseline."
    speeds = (
        f"{rate(comparison.b.summary.throughput_of(b[0]))} vs"
        f" {rate(comparison.a.summary.throughput_of(a[0]))}"
    )
    ratio = _precise_times(versus.ratio)
    if versus.low is None or versus.high is None:
        return f"B's best runs at {ratio} the speed of A's, {words.NO_INTERVAL}: {speeds}."
    within = f"{words.INTERVAL} {_precise_interval(versus.low, versus.high)}"
    if versus.low <= 1 <= versus.high:
        return f"B's best and A's cannot be told apart: {ratio} ({within}), {speeds}."
    return f"B's best runs at {ratio} the speed of A's ({within}): {speeds}."


def _figures(comparison: Comparison) -> Table:
    """Returns a table of baselines and winners: A, B, and B over A."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("")
    for name in ("A", "B", "B / A"):
        table.add_column(name, justify="right")
    sides = (comparison.a, comparison.b)
    for title, records, versus in (
        ("baseline", [side.baseline for side in sides], comparison.baseline),
        ("winner", [side.best[0] if side.best else None for side in sides], comparison.winner),
    ):
        both = list(zip(sides, records, strict=True))
        names = [_name(side, record) if title == "winner" else "" for side, record in both]
        table.add_row(title, *names, "")
        table.add_row("  samples/s", *(_speed(side, record) for side, record in both), _ratio_text(versus))
        epochs = [side.summary.epoch_seconds(record) if record else None for side, record in both]
        if any(epochs):
            table.add_row(
                "  per epoch", *map(seconds, epochs), _ratio_text(versus.of_epochs() if versus else None)
            )
        if title == "winner":
            table.add_row("  vs its baseline", *map(_confirmed_gain, sides), _ratio_text(comparison.gain))
        losses = [side.summary.value_of(record, "val_loss") if record else None for side, record in both]
        if any(value is not None for value in losses):
            table.add_row("  loss", *map(loss, losses), _quotient(losses[0], losses[1]))
        table.add_row("  verdict", *(_verdict(record) for _, record in both), "")
    return table


def _name(side: SweepSide, record: TrialRecord | None) -> str:
    if record is None:
        return "–"
    how = side.best[1] if side.best and side.best[0] is record else "confirmed"
    return f"{record.number:03d}{_HOW[how]}"


def _speed(side: SweepSide, record: TrialRecord | None) -> str:
    return f"{side.summary.throughput_of(record):,.0f}" if record is not None else "–"


def _confirmed_gain(side: SweepSide) -> str:
    ratio = side.summary.ratio
    return f"{times(ratio.ratio)} {interval(ratio.low, ratio.high)}" if ratio else "–"


def _verdict(record: TrialRecord | None) -> str:
    return verdict.kind.value if record is not None and (verdict := verdict_on(record)) else "–"


def _digits(ratio: float) -> str:
    """Returns a ratio with three decimals near 1."""
    return f"{ratio:.3f}" if 0.5 <= ratio < 2 else f"{ratio:.3g}"


def _precise_interval(low: float, high: float) -> str:
    return f"[{_digits(low)}, {_digits(high)}]"


def _precise_times(ratio: float) -> str:
    return f"{_digits(ratio)}x"


def _ratio_text(versus: SpeedRatio | None) -> str:
    if versus is None:
        return "–"
    if versus.low is None or versus.high is None:
        return _precise_times(versus.ratio)
    return f"{_precise_times(versus.ratio)} {_precise_interval(versus.low, versus.high)}"


def _quotient(a: float | None, b: float | None) -> str:
    return _precise_times(b / a) if a and b is not None else "–"


def _configuration(comparison: Comparison) -> Iterator[str | Table]:
    if not comparison.configuration:
        yield "The winners' configurations are the same."
        return
    yield "Where the winners' configurations differ:"
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for name in ("", "A", "B"):
        table.add_column(name, justify="right" if name else "left")
    for name, values in comparison.configuration.items():
        table.add_row(f"  {name}", *map(_value, values))
    yield table
    if comparison.searched:
        yield f"  Both sweeps searched {', '.join(comparison.searched)}; the best value changed."


def _value(value: Scalar) -> str:
    return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _trials(comparison: Comparison) -> Iterator[str]:
    """Yields the changes in speed of configurations that both sweeps measured."""
    if comparison.median is None:
        yield "No configuration was measured in both sweeps."
        return
    count = f"{len(comparison.pairs)} configuration{'s' * (len(comparison.pairs) > 1)}"
    median = _precise_times(comparison.median)
    yield f"Measured in both: {count}, with a median B / A of {median}. Largest changes:"
    moved = comparison.pairs[:MAX_MOVED]
    names = [comparison.a.name_of(pair.a) for pair in moved]
    for name, pair in zip(names, moved, strict=True):
        yield f"  {name:<{max(map(len, names))}}  {_precise_times(pair.ratio)}  (trial {pair.b.number} of B)"


def check_lines(comparison: Comparison, share: float) -> Iterator[str]:
    """Yields the result of `--fail-if-slower` for the baseline and the winner."""
    yield ""
    for title, versus in (("baseline", comparison.baseline), ("winner", comparison.winner)):
        allowed = f"more than {100 * share:g}%"
        if versus is None:
            yield f"The {title}: not decided, because one of the two was not measured."
            continue
        answer, why = str(versus.is_slower(share)), ""
        if answer == "not decided":
            why = f", {words.NO_INTERVAL}" if versus.low is None else f" crosses {1 - share:g}"
            answer += " whether slower"
        yield f"The {title}: {answer} by {allowed}: {_ratio_text(versus)}{why}."


def comparison_json(comparison: Comparison, share: float | None) -> dict[str, Any]:
    """Returns a comparison as `sweeper compare --json` prints it."""
    return {
        "a": _side_json(comparison.a),
        "b": _side_json(comparison.b),
        "unfair": list(comparison.unfair),
        "differences": changes(comparison),
        "baseline": _ratio_json(comparison.baseline, share),
        "winner": _ratio_json(comparison.winner, share),
        "gain": _ratio_json(comparison.gain, None),
        "configuration": {name: list(values) for name, values in comparison.configuration.items()},
        "searched": list(comparison.searched),
        "pairs": [
            {"a": pair.a.number, "b": pair.b.number, "ratio": round_to(pair.ratio, 4)}
            for pair in comparison.pairs
        ],
        "median": round_to(comparison.median, 4) if comparison.median is not None else None,
    }


def _side_json(side: SweepSide) -> dict[str, Any]:
    summary, best = side.summary, side.best
    return {
        "name": summary.name,
        "state": summary.state,
        "device": summary.device,
        "torch": side.fingerprint.get("torch"),
        "synthetic": summary.synthetic,
        "baseline": _record_json(side, side.baseline),
        "winner": {**(_record_json(side, best[0]) or {}), "how": best[1]} if best else None,
    }


def _record_json(side: SweepSide, record: TrialRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    ratio = side.summary.ratio
    fields: dict[str, Any] = {
        "number": record.number,
        "throughput": round_to(side.summary.throughput_of(record), 4),
        "epoch_seconds": side.summary.epoch_seconds(record),
        "rounds": len(side.speeds_of(record)),
        "val_loss": record.metric("val_loss"),
        "verdict": verdict.kind.value if (verdict := verdict_on(record)) else None,
    }
    if ratio is not None and ratio.trial == record.number:
        fields |= {key: round_to(getattr(ratio, key), 4) for key in ("ratio", "low", "high")}
    return fields


def _ratio_json(versus: SpeedRatio | None, share: float | None) -> dict[str, Any] | None:
    if versus is None:
        return None
    figures = {key: getattr(versus, key) for key in ("ratio", "low", "high", "epoch_ratio")}
    fields: dict[str, Any] = {k: round_to(v, 4) if v is not None else None for k, v in figures.items()}
    return fields if share is None else {**fields, "check": versus.is_slower(share)}
