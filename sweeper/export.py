"""Exporting a measured, feasible trial: what production needs, with where it comes from."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sweeper import __version__
from sweeper.core.codec import encode
from sweeper.core.config import TrialConfig
from sweeper.core.errors import NothingFeasibleError, UserError, did_you_mean
from sweeper.core.job import read_job
from sweeper.core.record import TrialRecord, rounded
from sweeper.core.script import FOLDER
from sweeper.core.template import arguments, render
from sweeper.spec import SweepSpec, to_yaml

SCHEMA = 1


def exported(summary: Any, spec: SweepSpec, number: int | None = None) -> dict[str, Any]:
    """Returns the export of the winner, or of trial `number`, as plain values.

    Args:
        summary: The sweep's summary (`sweeper.analysis.summary.Summary`).

    Raises:
        UserError: There is no such trial, or it was not measured or is not feasible.
        NothingFeasibleError: There is no winner.
    """
    record = _chosen(summary, number)
    measured = record.measurement
    assert measured is not None
    ratio = summary.ratio if summary.winner is record else None
    warnings = []
    if summary.synthetic:
        warnings.append("Measured on made-up data: measure again on your own before you rely on it.")
    if ratio is None:
        warnings.append("Not confirmed by repeats: the throughput is that of a single trial.")
    if disturbance := summary.disturbance_of(record):
        warnings.append(f"Its timings were disturbed to the end: {disturbance}.")
    return {
        "schema": SCHEMA,
        **_subject(spec, record),
        "measured": {
            "throughput": rounded(summary.throughput_of(record), 5),
            "epoch_seconds": rounded(epoch, 4) if (epoch := summary.epoch_seconds(record)) else None,
            "x_baseline": {
                "ratio": rounded(ratio.ratio, 4),
                "low": rounded(ratio.low, 4),
                "high": rounded(ratio.high, 4),
                "rounds": len(ratio.rounds),
            }
            if ratio
            else None,
            "val_loss": rounded(record.quality.val_loss, 6) if record.quality else None,
            "quality_samples": record.quality.samples if record.quality else None,
            "gpu_mem_peak_gib": measured.gpu_mem_peak_gib,
            "effective": dict(measured.effective),
        },
        "holds_for": {
            "device": summary.device,
            **measured.versions,
            "train_samples": measured.train_samples or None,
            "cpu_threads": measured.cpu_threads,
        },
        "provenance": {
            "sweep": summary.name,
            "trial": record.number,
            "uid": record.uid,
            "measured_at": datetime.fromtimestamp(measured.finished_at, UTC).isoformat(timespec="seconds"),
            "sweeper": __version__,
        },
        "warnings": warnings,
    }


def _chosen(summary: Any, number: int | None) -> TrialRecord:
    if number is None:
        if summary.winner is None:
            raise NothingFeasibleError(
                f"`{summary.name}` has no winner to export ({summary.reason or summary.state}). "
                "Name a trial with --trial N."
            )
        winner: TrialRecord = summary.winner
        return winner
    found: TrialRecord | None = next((r for r in summary.records if r.number == number), None)
    if found is None:
        raise UserError(f"`{summary.name}` has no trial {number}; there are {len(summary.records)}, from 0.")
    if not found.feasible:
        why = found.failure.message if found.failure else "it is beyond a limit or unfinished"
        raise UserError(f"only a measured, feasible trial can be exported, but {number} is not: {why}.")
    return found


def _subject(spec: SweepSpec, record: TrialRecord) -> dict[str, Any]:
    """Returns what a production run is made of: a pipeline and its configuration, or a command line."""
    config = record.config.canonical()
    if not spec.command:
        return {"pipeline": spec.pipeline, "data": spec.to_dict()["data"], "config": _nested(config)}
    # As it was when it ran: its templates' files may have changed since.
    script = read_job(Path(record.folder)).script
    assert script is not None
    values = {**(config.args or {}), FOLDER: "."}
    return {
        "command": arguments(script.command, values),
        "env": {name: render(text, values) for name, text in script.env.items()},
        "files": {path: render(text, values) for path, text in script.files.items()},
        "params": config.flatten(),
    }


def _nested(config: TrialConfig) -> dict[str, Any]:
    tree: dict[str, Any] = encode(config)
    return tree


def _as_arguments(value: Mapping[str, Any]) -> str:
    """Returns a command line as a shell takes it, the files it needs in comments before it."""
    if "command" not in value:
        raise UserError("`--format args` needs the sweep of a `command`, but this one is of a pipeline.")
    lines = []
    for path, text in value["files"].items():
        lines += [f"# {path}:", *(f"#   {line}" for line in text.splitlines())]
    own = [f"{name}={shlex.quote(text)}" for name, text in value["env"].items()]
    return "\n".join([*lines, " ".join([*own, shlex.join(value["command"])])]) + "\n"


def _as_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


FORMATS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "yaml": to_yaml,
    "json": _as_json,
    "args": _as_arguments,
}
"""The formats of `sweeper export`; a new one is a line here."""


def rendered(value: Mapping[str, Any], form: str) -> str:
    """Returns an export as text.

    Raises:
        UserError: The format is unknown.
    """
    if form not in FORMATS:
        raise UserError(
            f"`--format` must be one of {', '.join(FORMATS)}, but got {form!r}.{did_you_mean(form, FORMATS)}"
        )
    return FORMATS[form](value)
