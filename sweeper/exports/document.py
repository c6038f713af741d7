"""Builds the export of a trial as plain values: what runs, how fast it was, and where that holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sweeper._version import __version__
from sweeper.core.codec import encode
from sweeper.core.config import TrialConfig
from sweeper.core.job import read_job
from sweeper.core.loaders import STREAM, traits
from sweeper.core.measurement import Measurement
from sweeper.core.metrics import round_to
from sweeper.core.record import TrialRecord
from sweeper.core.registry import resolve
from sweeper.core.script import FOLDER
from sweeper.core.template import arguments, render
from sweeper.core.workload import script_of
from sweeper.errors import NothingFeasibleError, UserError
from sweeper.exports import verification
from sweeper.exports.caveats import caveats, confirmed_ratio
from sweeper.exports.schema import (
    ConditionsBlock,
    ExecutionBlock,
    Export,
    Gpu,
    LearningRate,
    MeasurementBlock,
    OfPipeline,
    OfScript,
    Provenance,
    Speedup,
    VerificationBlock,
    plain_values,
)
from sweeper.results import words
from sweeper.results.numbers.confirmation import Ratio
from sweeper.results.numbers.summary import Summary
from sweeper.results.verdict.bottleneck import verdict_on
from sweeper.schema import SweepSpec

_USERINFO = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z][A-Za-z0-9+.-]*://)[^/?#\s@]*:[^/?#\s]*@")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Facts about the data and the machine that were known before the first trial.

    Attributes:
        data_gib: Size of the prepared data; None if unknown.
        usable_cpus: Cores that trials could use; None if unknown.
    """

    data_gib: float | None = None
    usable_cpus: int | None = None


def make_export(
    summary: Summary, spec: SweepSpec, number: int | None = None, setting: Setting | None = None
) -> dict[str, Any]:
    """Returns the export of the winner, or of trial `number`, as plain values.

    Args:
        summary: The sweep's summary (`sweeper.results.numbers.summary.Summary`).

    Raises:
        UserError: There is no such trial, it was not measured, is not feasible, or cannot run on
            production's data.
        NothingFeasibleError: There is no winner.
    """
    setting = setting or Setting()
    record = _choose_trial(summary, number)
    measured = record.measurement
    assert measured is not None
    _refuse_beyond_production(spec, record, measured)
    subject, left_out = _strip_credentials(plain_values(subject_of(spec, record)))
    passing = spec.execution.pass_env
    return plain_values(
        Export(
            subject=subject,
            measurement=_measurement(summary, spec, record, measured),
            conditions=_conditions(summary.device, measured, setting),
            verification=_verification_block(record),
            production=_production(spec),
            execution=ExecutionBlock(pass_env=list(passing)) if passing else None,
            provenance=Provenance(
                sweep=summary.name,
                trial=record.number,
                uid=record.uid,
                measured_at=datetime.fromtimestamp(measured.finished_at, UTC).isoformat(timespec="seconds"),
                sweeper=__version__,
            ),
            warnings=[*caveats(summary, spec, record, setting.data_gib), *left_out],
        )
    )


def _strip_credentials(tree: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Returns plain values with no `user:password@` in any URL, and a warning for each that had one."""
    paths: list[str] = []
    stripped: dict[str, Any] = _strip(tree, "", paths)
    return stripped, [
        f"The credentials in the URL of `{path}` were removed. Supply them at run time." for path in paths
    ]


def _strip(value: Any, path: str, paths: list[str]) -> Any:
    if isinstance(value, str):
        clean = _USERINFO.sub(r"\1", value)
        paths += [path] if clean != value else []
        return clean
    if isinstance(value, Mapping):
        return {k: _strip(v, f"{path}.{k}" if path else str(k), paths) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_strip(item, f"{path}[{i}]", paths) for i, item in enumerate(value)]
    return value


def _verification_block(record: TrialRecord) -> VerificationBlock | None:
    verified = verification.read(record)
    if verified is None or verified.difference:
        return None
    return VerificationBlock(kind=verified.kind, extent=verified.extent, code=verified.code)


def _choose_trial(summary: Summary, number: int | None) -> TrialRecord:
    if number is None:
        if summary.winner is None:
            raise NothingFeasibleError(
                f"`{summary.name}` has no winner to export ({summary.reason or summary.state}). "
                "Name a trial with --trial N."
            )
        winner: TrialRecord = summary.winner
        return winner
    record: TrialRecord | None = next((r for r in summary.records if r.number == number), None)
    if record is None:
        raise UserError(
            f"`{summary.name}` has no trial {number}; it has {len(summary.records)}, numbered from 0."
        )
    if not record.feasible:
        why = record.failure.message if record.failure else "it exceeds a limit or is unfinished"
        raise UserError(f"only a measured, feasible trial can be exported, but trial {number} is not: {why}.")
    return record


def _production(spec: SweepSpec) -> Mapping[str, Any] | None:
    block = dict(spec.to_dict().get("production") or {})
    # Left out if unset, as in exports of earlier versions.
    if block.get("price_per_hour", 0) is None:
        del block["price_per_hour"]
    return block or None


def _refuse_beyond_production(spec: SweepSpec, record: TrialRecord, measured: Measurement) -> None:
    kind = record.config.loader.kind
    if not record.config.names_are_fields or spec.production is None or not traits(kind).is_resident:
        return
    if why := spec.production.why_too_large(measured.device):
        raise UserError(
            f"`loader.kind: {kind}` of trial {record.number} needs all of production's data on the device, "
            f"but {why}. Export a trial with `loader.kind: {STREAM}`, or sweep with `fix: "
            f"{{loader.kind: {STREAM}}}`."
        )


def _measurement(
    summary: Summary, spec: SweepSpec, record: TrialRecord, measured: Measurement
) -> MeasurementBlock:
    ratio, quality = confirmed_ratio(summary, record), record.quality
    peak, memory = measured.gpu_mem_peak_gib, measured.device.memory_gib
    tree_mem = measured.telemetry.get("tree_mem_gib")
    return MeasurementBlock(
        throughput=round_to(summary.throughput_of(record), 5),
        throughput_low=_round(ratio.throughput_low, 4) if ratio else None,
        throughput_high=_round(ratio.throughput_high, 4) if ratio else None,
        epoch_seconds=_round(summary.epoch_seconds(record), 4),
        projected_hours=_round(summary.projected_hours(record), 4),
        speedup=_speedup(ratio) if ratio else None,
        val_loss=round_to(quality.val_loss, 6) if quality else None,
        quality_samples=quality.samples if quality else None,
        lr=_learning_rate(record.config) if record.config.names_are_fields else None,
        gpu_mem_peak_gib=peak,
        gpu_mem_headroom_gib=round(memory - peak, 3) if memory and peak is not None else None,
        host_mem_peak_gib=measured.host_mem_peak_gib,
        tree_mem_gib=_round(tree_mem.p95, 4) if tree_mem else None,
        effective=dict(measured.effective),
        verdict=f"{verdict.kind}: {verdict.why}" if (verdict := verdict_on(record)) else None,
    )


def _speedup(ratio: Ratio) -> Speedup:
    return Speedup(
        ratio=round_to(ratio.ratio, 4),
        low=round_to(ratio.low, 4),
        high=round_to(ratio.high, 4),
        rounds=len(ratio.rounds),
    )


def _learning_rate(config: TrialConfig) -> LearningRate:
    optimizer = config.canonical().optimizer
    return LearningRate(
        value=round_to(optimizer.lr_at(config.global_batch), 6),
        global_batch=config.global_batch,
        rule=optimizer.lr_rule,
        from_lr=optimizer.lr,
        at_batch=optimizer.lr_batch_size or config.global_batch,
    )


def _conditions(device: str, measured: Measurement, setting: Setting) -> ConditionsBlock:
    gpu = Gpu(gpu=measured.device.name, gpu_mem_gib=measured.device.memory_gib or None)
    return ConditionsBlock(
        device=device,
        gpu=gpu if measured.device.kind == "cuda" else None,
        versions=measured.versions,
        train_samples=measured.train_samples or None,
        data_gib=_round(setting.data_gib, 4),
        cpu_threads=measured.cpu_threads or None,
        usable_cpus=setting.usable_cpus,
    )


def _round(value: float | None, digits: int) -> float | None:
    return None if value is None else round_to(value, digits)


def subject_of(spec: SweepSpec, record: TrialRecord) -> OfPipeline | OfScript:
    """Returns what the export of a trial is of.

    Raises:
        UserError: Work of its kind cannot be exported.
    """
    if not spec.traits.exported:
        raise UserError(f"`{spec.name}` cannot be exported: its `workload` has no `exported`.")
    subject: OfPipeline | OfScript = resolve(spec.traits.exported)(spec, record)
    return subject


def of_pipeline(spec: SweepSpec, record: TrialRecord) -> OfPipeline:
    """Returns the pipeline, its data and the trial's configuration."""
    config = record.config.canonical()
    return OfPipeline(pipeline=spec.pipeline, data=spec.to_dict()["data"], config=encode(config))


def of_script(spec: SweepSpec, record: TrialRecord) -> OfScript:
    """Returns the script as it ran in the trial."""
    config = record.config.canonical()
    # From the job: the templates' files may have changed since it ran.
    script = script_of(read_job(Path(record.folder)))
    values = {**(config.args or {}), FOLDER: "."}
    return OfScript(
        command=arguments(script.command, values),
        changes=script.changes_for(values),
        env=script.variables(values),
        files={path: render(text, values) for path, text in script.files.items()},
        params=config.flatten(),
    )


def origin(value: Mapping[str, Any]) -> str:
    """Returns `trial 2 of the sweep quick, measured at ...`."""
    source = value["provenance"]
    return f"trial {source['trial']} of the sweep {source['sweep']}, measured at {source['measured_at']}"


def promise(value: Mapping[str, Any]) -> str:
    """Returns one line with the figures to expect in production and their device."""
    measured, held = value["measurement"], value["conditions"]
    parts = [f"{measured['throughput']:,.0f} samples/s"]
    if measured["epoch_seconds"]:
        parts.append(f"{measured['epoch_seconds']:.3g} s per epoch")
    if ratio := measured["speedup"]:
        sure = words.interval_text(ratio["low"], ratio["high"], ratio["rounds"])
        parts.append(f"{words.speedup_text(ratio['ratio'])} ({sure})")
    if measured["projected_hours"]:
        parts.append(f"{measured['projected_hours']:.3g} h projected for production")
    return " ".join(f"{', '.join(parts)}, on {held['device']}".split())
