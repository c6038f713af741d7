"""`sweeper check --deep` for a pipeline: describes its data, baseline and largest trial."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sweeper.cli import signals
from sweeper.cli.exit_codes import FAILED
from sweeper.cli.screen import console, print_json, say
from sweeper.core.loaders import RESIDENT
from sweeper.results.formatting import loss, seconds, size
from sweeper.results.numbers.labels import label
from sweeper.scaffold.check_pipeline import PipelineCheck, StepResult, build_out, expected_gib
from sweeper.schema import SweepSpec
from sweeper.sweep.folder.load import varied_names


def check_pipeline_deep(spec: SweepSpec, home: Path, *, as_json: bool) -> int:
    """Prepares the data, takes two steps and prints the results; returns the exit code."""
    out = console()
    if not as_json:
        say(out, f"Preparing the data in {home / 'cache'}, then running the baseline and the largest trial.")
    if spec.execution.is_remote:
        signals.allow_cluster()
    check = build_out(home, spec)
    if as_json:
        print_json(check_json(check))
    else:
        say(out, *check_lines(check))
    return FAILED if check.fails_here else 0


def check_lines(check: PipelineCheck) -> Iterator[str]:
    """Yields lines on the data, on what was left out of the space, and on both configurations' steps."""
    yield from _data_lines(check)
    if check.removed:
        yield "Left out on this machine:"
        yield from (f"  {line}" for line in check.removed)
    if check.baseline is None:
        yield from _failure_lines(check, "The baseline")
        return
    names = varied_names(check.spec)
    yield f"The baseline, {label(check.baseline.config, names)}, on {check.device}:"
    yield from _stepped_lines(check, check.baseline)
    yield from _gpu_lines(check)
    if check.largest is None:
        yield "The space has no larger configuration."
        return
    yield f"The largest configuration, {label(check.largest, names)}:"
    yield from _largest_lines(check)
    if check.failure:
        yield from _failure_lines(check, "The largest configuration")


def _data_lines(check: PipelineCheck) -> Iterator[str]:
    data = check.data
    if data["synthetic"]:
        yield "Synthetic data: speeds are real, but losses mean nothing outside this check."
    else:
        yield "Real data: none of it is synthetic."
    yield from (f"  {note}" for note in data["notes"])
    if check.baseline is None:
        return
    values = check.baseline.values
    counts = f"{values['train_samples']:,} training samples, {values['val_samples']:,} validation samples"
    held = values["data_bytes"]
    if held is None:
        yield f"  {counts}; read on demand."
    else:
        sample_size = size(held / values["train_samples"])
        yield f"  {counts}; {size(held)} of training data, {sample_size} per sample."
    fits = f"is not possible: {check.not_resident}" if check.not_resident else "fits on the device"
    yield f"  `loader.kind: {RESIDENT}` {fits}."


def _stepped_lines(check: PipelineCheck, stepped: StepResult) -> Iterator[str]:
    values = stepped.values
    tensors = "; ".join(
        f"{name} {tensor['shape']} {tensor['dtype']}" for name, tensor in values["batch"].items()
    )
    yield f"  a batch is {tensors}: {size(values['batch_bytes'])}"
    yield _model_line(stepped)
    yield _cost_line(check, stepped)


def _gpu_lines(check: PipelineCheck) -> Iterator[str]:
    """Yields GPU findings; without a GPU they are only notes, since no step has run on one."""
    count = len(check.checked)
    of = "the baseline" if count == 1 else f"{count} kinds of model or data"
    if not check.findings:
        yield f"Nothing in {of} is expected to fail on a GPU or to make the host wait."
        return
    yield f"On a GPU ({of} checked without one):"
    words = {"fails": "fails", "waits": "waits for the GPU", "unknown": "not checked from here on"}
    for finding in check.findings:
        place = f"{finding['place']} " if finding["place"] else ""
        yield f"  {place}{words[finding['effect']]} in {finding['part'] or 'the check'}: {finding['what']}."


def _largest_lines(check: PipelineCheck) -> Iterator[str]:
    assert check.largest is not None
    batch_size = check.largest.batch_size
    if check.stepped:
        yield _model_line(check.stepped[-1])
    for step in check.stepped:
        yield _cost_line(check, step)
    if check.not_run:
        yield f"  batch {batch_size:,} was not run: {check.not_run}."
        expected = expected_gib(check.stepped, batch_size)
        if expected is not None:
            yield (
                f"  batch {batch_size:,}: about {_gib(check, expected)}"
                " (estimated from the two smaller batches)."
            )


def _model_line(stepped: StepResult) -> str:
    losses = ", then ".join(map(loss, stepped.values["losses"]))
    return f"  {stepped.values['parameters']:,} parameters; loss {losses}"


def _cost_line(check: PipelineCheck, stepped: StepResult) -> str:
    of = "on the GPU" if check.on_gpu else "in the process"
    step_times = ", then ".join(map(seconds, stepped.values["step_seconds"]))
    peak = _gib(check, stepped.values["peak_gib"])
    return f"  batch {stepped.config.batch_size:,}: a step took {step_times}; peak {peak} {of}"


def _gib(check: PipelineCheck, gib: float) -> str:
    return f"{gib:.3g} of {check.room_gib:.3g} GiB" if check.room_gib else f"{gib:.3g} GiB"


def _failure_lines(check: PipelineCheck, which: str) -> Iterator[str]:
    failure = check.failure
    assert failure is not None
    yield f"{which} did not run: {failure.kind}: {failure.message}"
    yield from (f"    {line}" for line in failure.detail.splitlines()[-5:])


def check_json(check: PipelineCheck) -> dict[str, Any]:
    """Returns the content of `check_lines` as JSON values, with sizes as numbers."""
    return {
        "name": check.spec.name,
        "device": check.device,
        "room_gib": check.room_gib,
        "synthetic": check.data["synthetic"],
        "notes": check.data["notes"],
        "left_out": check.removed,
        "resident": not check.not_resident,
        "baseline": None if check.baseline is None else _stepped_json(check.baseline),
        "on_gpu": check.on_gpu,
        "gpu": {"checked": [config.flatten() for config in check.checked], "findings": check.findings},
        "largest": None
        if check.largest is None
        else {
            "config": check.largest.canonical().flatten(),
            "steps": [_stepped_json(step) for step in check.stepped],
            "expected_gib": expected_gib(check.stepped, check.largest.batch_size),
            "not_run": check.not_run,
        },
        "failure": check.failure,
    }


def _stepped_json(stepped: StepResult) -> dict[str, Any]:
    return {"config": stepped.config.flatten(), **stepped.values}
