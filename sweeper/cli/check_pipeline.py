"""`sweeper check --deep` for a pipeline: describes its data, baseline and largest trial."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sweeper.cli import signals
from sweeper.cli.screen import console, print_json, say
from sweeper.core.loaders import RESIDENT
from sweeper.results.formatting import loss, seconds, size
from sweeper.results.numbers.labels import label
from sweeper.scaffold.check_pipeline import PipelineCheck, StepResult, build_out, expected_gib
from sweeper.schema import SweepSpec
from sweeper.sweep.folder.load import varied_names

FAILED = 1


def deep_pipeline_command(spec: SweepSpec, home: Path, *, as_json: bool) -> int:
    """Prepares the data, takes two steps and prints the results; returns the exit code."""
    out = console()
    if not as_json:
        say(out, f"Preparing the data in {home / 'cache'}, then running the baseline and the largest trial.")
    if spec.execution.is_remote:
        signals.allow_cluster()
    built = build_out(home, spec)
    if as_json:
        print_json(built_json(built))
    else:
        say(out, *built_lines(built))
    return FAILED if built.fails_here else 0


def built_lines(built: PipelineCheck) -> Iterator[str]:
    """Yields lines on the data, on what was left out of the space, and on both configurations' steps."""
    yield from _data_lines(built)
    if built.removed:
        yield "Left out on this machine:"
        yield from (f"  {line}" for line in built.removed)
    if built.baseline is None:
        yield from _failure_lines(built, "The baseline")
        return
    names = varied_names(built.spec)
    yield f"The baseline, {label(built.baseline.config, names)}, on {built.device}:"
    yield from _stepped_lines(built, built.baseline)
    yield from _gpu_lines(built)
    if built.largest is None:
        yield "The space has no larger configuration."
        return
    yield f"The largest configuration, {label(built.largest, names)}:"
    yield from _largest_lines(built)
    if built.failure:
        yield from _failure_lines(built, "The largest configuration")


def _data_lines(built: PipelineCheck) -> Iterator[str]:
    data = built.data
    if data["synthetic"]:
        yield "Synthetic data: speeds are real, but losses mean nothing outside this check."
    else:
        yield "Real data: none of it is synthetic."
    yield from (f"  {note}" for note in data["notes"])
    if built.baseline is None:
        return
    values = built.baseline.values
    counts = f"{values['train_samples']:,} training samples, {values['val_samples']:,} validation samples"
    held = values["data_bytes"]
    if held is None:
        yield f"  {counts}; read on demand."
    else:
        sample_size = size(held / values["train_samples"])
        yield f"  {counts}; {size(held)} of training data, {sample_size} per sample."
    fits = f"is not possible: {built.not_resident}" if built.not_resident else "fits on the device"
    yield f"  `loader.kind: {RESIDENT}` {fits}."


def _stepped_lines(built: PipelineCheck, stepped: StepResult) -> Iterator[str]:
    values = stepped.values
    tensors = "; ".join(
        f"{name} {tensor['shape']} {tensor['dtype']}" for name, tensor in values["batch"].items()
    )
    yield f"  a batch is {tensors}: {size(values['batch_bytes'])}"
    yield _model_line(stepped)
    yield _cost_line(built, stepped)


def _gpu_lines(built: PipelineCheck) -> Iterator[str]:
    """Yields GPU findings; without a GPU they are only notes, since no step has run on one."""
    count = len(built.checked)
    of = "the baseline" if count == 1 else f"{count} kinds of model or data"
    if not built.findings:
        yield f"Nothing in {of} is expected to fail on a GPU or to make the host wait."
        return
    yield f"On a GPU ({of} checked without one):"
    words = {"fails": "fails", "waits": "waits for the GPU", "unknown": "not checked from here on"}
    for finding in built.findings:
        place = f"{finding['place']} " if finding["place"] else ""
        yield f"  {place}{words[finding['effect']]} in {finding['part'] or 'the check'}: {finding['what']}."


def _largest_lines(built: PipelineCheck) -> Iterator[str]:
    assert built.largest is not None
    batch_size = built.largest.batch_size
    if built.stepped:
        yield _model_line(built.stepped[-1])
    for step in built.stepped:
        yield _cost_line(built, step)
    if built.not_run:
        yield f"  batch {batch_size:,} was not run: {built.not_run}."
        expected = expected_gib(built.stepped, batch_size)
        if expected is not None:
            yield (
                f"  batch {batch_size:,}: about {_gib(built, expected)}"
                " (estimated from the two smaller batches)."
            )


def _model_line(stepped: StepResult) -> str:
    losses = ", then ".join(map(loss, stepped.values["losses"]))
    return f"  {stepped.values['parameters']:,} parameters; loss {losses}"


def _cost_line(built: PipelineCheck, stepped: StepResult) -> str:
    of = "on the GPU" if built.on_gpu else "in the process"
    step_times = ", then ".join(map(seconds, stepped.values["step_seconds"]))
    peak = _gib(built, stepped.values["peak_gib"])
    return f"  batch {stepped.config.batch_size:,}: a step took {step_times}; peak {peak} {of}"


def _gib(built: PipelineCheck, gib: float) -> str:
    return f"{gib:.3g} of {built.room_gib:.3g} GiB" if built.room_gib else f"{gib:.3g} GiB"


def _failure_lines(built: PipelineCheck, which: str) -> Iterator[str]:
    failure = built.failure
    assert failure is not None
    yield f"{which} did not run: {failure.kind}: {failure.message}"
    yield from (f"    {line}" for line in failure.detail.splitlines()[-5:])


def built_json(built: PipelineCheck) -> dict[str, Any]:
    """Returns the content of `built_lines` as JSON values, with sizes as numbers."""
    return {
        "name": built.spec.name,
        "device": built.device,
        "room_gib": built.room_gib,
        "synthetic": built.data["synthetic"],
        "notes": built.data["notes"],
        "left_out": built.removed,
        "resident": not built.not_resident,
        "baseline": None if built.baseline is None else _stepped_json(built.baseline),
        "on_gpu": built.on_gpu,
        "gpu": {"checked": [config.flatten() for config in built.checked], "findings": built.findings},
        "largest": None
        if built.largest is None
        else {
            "config": built.largest.canonical().flatten(),
            "steps": [_stepped_json(step) for step in built.stepped],
            "expected_gib": expected_gib(built.stepped, built.largest.batch_size),
            "not_run": built.not_run,
        },
        "failure": built.failure,
    }


def _stepped_json(stepped: StepResult) -> dict[str, Any]:
    return {"config": stepped.config.flatten(), **stepped.values}
