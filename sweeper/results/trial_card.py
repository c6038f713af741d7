"""Renders a trial as a card: its bottleneck, the parts of its step, and what to change next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Breakdown, Diagnosis, Measurement
from sweeper.core.record import TrialRecord
from sweeper.core.workload import is_reported
from sweeper.results.formatting import figure
from sweeper.results.run_lines import run_lines
from sweeper.results.verdict.bottleneck import as_timed, verdict_of
from sweeper.results.verdict.remedies import percent
from sweeper.results.verdict.straggler import straggler


class StepPart(NamedTuple):
    """A part of a step, and what a breakdown, a verdict, a chart and `Diagnosis.lines` call it."""

    title: str
    field: str
    phase: str
    tone: str
    lines: str


PARTS = (
    StepPart("waiting for data", "data_s", "data", "data", "data"),
    StepPart("copy to the device", "h2d_s", "h2d", "copy", "copy"),
    StepPart("forward", "forward_s", "compute", "forward", "forward"),
    StepPart("backward", "backward_s", "compute", "backward", "backward"),
    StepPart("optimiser", "optimizer_s", "compute", "optimiser", "optimizer"),
    StepPart("captured step", "graph_s", "compute", "graph", ""),
    StepPart("host gap", "host_gap_s", "host", "gap", "rest"),
)
_BAR = 40
_MIN_SHARE = 0.005
_MIN_EVALUATION = 0.05
_MIN_COLLECTING = 0.02
_MIN_FOREIGN_CORES = 0.3


def trial_card(record: TrialRecord) -> Iterator[str]:
    """Yields the lines of the card; none without a measurement."""
    if record.measurement is not None:
        yield from card(record.measurement, record.config)
        yield from run_lines(record.measurement)


def card(measured: Measurement, config: TrialConfig) -> Iterator[str]:
    """Yields the lines of the card of what `config` measured."""
    verdict = verdict_of(measured, config)
    yield f"{verdict.kind}: {verdict.why}"
    if measured.breakdown.step_s:
        yield from tree(measured.breakdown, verdict.phase, measured.diagnosis)
        if as_timed(measured) is not None:
            yield f"  while it was taken apart; when it was timed, a step took {figure(measured.step_ms)} ms"
    diagnosis = measured.diagnosis
    # Of a run that was watched, all parts are said together: `run_lines`.
    if measured.run is None and diagnosis and (diagnosis.evaluation_share or 0.0) >= _MIN_EVALUATION:
        yield f"evaluation takes {percent(diagnosis.evaluation_share or 0.0)} of the time"
    for deed in diagnosis.outside if diagnosis else ():
        yield f"outside its folder: {deed}"
    if slow := straggler(measured, config.device.count):
        yield slow
    yield from _waste(measured)
    if is_reported(measured):
        yield f"speed as reported by {measured.reported_by}"
    for part in measured.exclusions:
        yield f"left out: {part}"
    if verdict.next:
        yield f"next: {verdict.next}"
    if measured.contamination:
        yield f"disturbed until the end ({', '.join(measured.contamination)}): do not rely on these figures"
    elif measured.repeated_windows:
        count = measured.repeated_windows
        yield f"{count} disturbed window{'s were' if count > 1 else ' was'} measured again"
    for name, what in measured.effective.items():
        yield f"`{name}`: {what}"


def _waste(measured: Measurement) -> Iterator[str]:
    """Yields what wastes the work of a script's loader."""
    seen = measured.observed
    workers = int(seen.get("num_workers") or 0)
    if idle := seen.get("idle_workers"):
        yield f"{idle} of {workers} workers have nothing to read: the stream has fewer shards than workers"
    if seen.get("repeats_rows"):
        yield "rows come twice: each worker reads the whole stream; split it with `get_worker_info()`"
    if share := seen.get("padding_share"):
        yield f"{percent(share)} of a batch is padding: batch rows of similar lengths"
    if (share := seen.get("collector_share") or 0.0) >= _MIN_COLLECTING:
        yield f"Python looks for garbage {percent(share)} of the time: `sweeper tune` can freeze it"
    threads, cores = int(seen.get("threads") or 1), _foreign_cores(measured)
    usable = measured.diagnosis.usable_cpus if measured.diagnosis else 0
    lack = usable and cores >= _MIN_FOREIGN_CORES and cores + threads > usable
    if threads > 1 and lack and not measured.trains_on_gpu:
        yield (
            f"other programs keep {cores:.1f} cores busy, and the {threads} threads of an operation wait for"
            " one another there: `OMP_NUM_THREADS=1` may be many times faster, and so may an idle machine"
        )
    if measured.diagnosis and measured.diagnosis.usable_cpus == 1 and workers > 1:
        yield (
            f"{workers} workers share one core, which is all that this process may use: ask for more, as by"
            f" `srun --cpus-per-task {workers}`"
        )


def _foreign_cores(measured: Measurement) -> float:
    """Returns how many of its cores other programs kept busy meanwhile."""
    seconds = sum(window.seconds for window in measured.windows)
    return sum(window.foreign_cpu_seconds for window in measured.windows) / seconds if seconds else 0.0


def tree(parts: Breakdown, cause: str, diagnosis: Diagnosis | None = None) -> Iterator[str]:
    """Yields the parts of a step as a percentage tree; the largest part of the phase `cause` is marked.

    Args:
        diagnosis: Gives the lines of a script that take most of each part.
    """
    step = parts.step_s
    shares = [(part, getattr(parts, part.field) / step) for part in PARTS]
    shown = [(part, share) for part, share in shares if share >= _MIN_SHARE or part.phase == cause == "data"]
    marked, _ = max(
        (row for row in shown if row[0].phase == cause), key=lambda row: row[1], default=(None, 0)
    )
    tops = {lines[0] for lines in (diagnosis.lines if diagnosis else {}).values() if lines}
    yield f"  a step of {figure(1e3 * step)} ms"
    for part, share in shown:
        branch = "└─" if part is shown[-1][0] else "├─"
        mark = "  ◄ the cause" if part is marked else ""
        lines = diagnosis.lines.get(part.lines, ()) if diagnosis else ()
        # A script that hands its loop to a library has one line for everything.
        line = f"  {lines[0]}" if lines and len(tops) > 1 else ""
        yield f"  {branch} {part.title:<18} {100 * share:4.0f}% {'█' * round(_BAR * share)}{mark}{line}"
