"""Writes a first search space for a pipeline on this machine's device, as commented YAML."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sweeper.core.config import FIELDS, OPEN_SECTIONS, Scalar
from sweeper.core.loaders import RESIDENT, ROWS, WORKERS
from sweeper.scaffold.pipeline_options import PipelineOptions
from sweeper.schema import SweepSpec
from sweeper.schema.writer import to_yaml
from sweeper.search.guidance import MEMORY_TARGET, preset_for, workers_for
from sweeper.sweep.start.bootstrap import Launch, launcher_to_try_out, probe_machine
from sweeper.sweep.start.setup import Machine

MAX_WORKERS = 16
MAX_BATCH = {"cuda": 4096, "cpu": 1024}
"""Largest batch for a device without a preset; with one, the range ends at `BATCHES` times its batch."""
BATCHES = 8
_FIXED = {"optimizer.lr": "1e-3", "optimizer.lr_rule": "sqrt"}
_WIDTH, _ROOM = 100, 40


@dataclass(frozen=True, slots=True)
class _Line:
    """A name with its YAML text and the reason for it."""

    name: str
    text: str
    why: str


def machine_here(launch: Launch | None = None) -> Machine:
    """Probes this machine as a sweep does.

    Raises:
        EnvironmentStopError: It cannot be probed.
    """
    spec = SweepSpec.from_dict({"name": "init", "pipeline": "init", "space": {}, "baseline": {}})
    with launcher_to_try_out(spec, launch) as (launcher, folder):
        return probe_machine(launcher, folder / "probe", spec)


def first_space(offer: PipelineOptions, machine: Machine, path: str) -> str:
    """Returns a search space that `sweeper.schema.load` reads.

    Args:
        path: The file's name in the next commands.
    """
    return "\n".join(_lines(offer, machine, path)) + "\n"


def name_of(offer: PipelineOptions) -> str:
    """Returns the name of the sweep, and of its file."""
    return offer.module.rpartition(".")[2].strip("_") or "first"


def searched_names(offer: PipelineOptions, machine: Machine) -> tuple[str, ...]:
    """Returns the names that the search space searches."""
    return tuple(line.name for line in _space(offer, machine))


def _lines(offer: PipelineOptions, machine: Machine, path: str) -> Iterator[str]:
    yield f"# A first search space for {offer.module} on {machine.line}. Review it before you use it."
    if offer.summary:
        yield f"# {offer.summary}"
    yield f"#   sweeper check {path} --deep     prepares the data and takes two steps"
    yield f"#   sweeper run {path}"
    for table in offer.unread:
        yield f"# {table} in {offer.module} is not a literal table, so it was not read."
    yield f"name: {name_of(offer)}"
    yield f"pipeline: {offer.module}"
    yield from _data(offer)
    yield "# The parameters to search; values that this device does not support are left out."
    yield "space:"
    yield from _align(_space(offer, machine))
    fixed = {name: text for name, text in _FIXED.items() if name not in offer.space}
    yield "# The learning rate scales with the batch: `sqrt` for Adam, `linear` for SGD."
    yield f"fix: {{{', '.join(f'{name}: {text}' for name, text in fixed.items())}}}"
    yield "# The reference for all trials, measured first: enter how you train today."
    yield "baseline:"
    yield from _align(_baseline(offer))
    yield "# More configurations to measure as they are, such as one tuned by hand."
    yield f"# also_try: [{{loader.kind: {ROWS}, loader.num_workers: 8, batch_size: 512}}]"
    yield "constraints:"
    yield from _align(_constraints(machine))
    yield "# Your production run, in training samples over all epochs: the report then gives its hours."
    yield "# production: {samples: 1.0e9}"
    yield "# Number and length of each trial's windows, once its speed is steady; then comes its loss."
    yield "measure: {window_seconds: 1, repeats: 3, quality_samples: auto}"
    yield "# Limits of the search; the minutes include confirmation."
    yield "search: {trials: 40, minutes: 20, seed: 0}"
    yield "# The best trials take turns with the baseline, each time in a new process."
    yield "confirm: {top: 3, rounds: 4}"


def _data(offer: PipelineOptions) -> Iterator[str]:
    """Yields the options of `prepare` with their defaults, in comments except for the source."""
    wrapped = textwrap.wrap(offer.about_data, _WIDTH, initial_indent="# ", subsequent_indent="# ")
    yield ("# Your data: a `path` replaces the synthetic source." if "path" in offer.data else "# The data.")
    yield from wrapped
    source = offer.data.get("source")
    if source is None:
        yield f"data: {{}}{'     # remove the braces to use a line below' if offer.data else ''}"
    else:
        yield "data:"
        yield f"  source: {_value(source)}"
    for key, default in offer.data.items():
        if key != "source":
            yield f"  # {key}: {_value(default)}"


def _space(offer: PipelineOptions, machine: Machine) -> Iterator[_Line]:
    kind, space = machine.devices[0].kind, dict(offer.space)
    preset = preset_for(machine.devices[0].name) if kind == "cuda" else None

    def choice(name: str, choices: tuple[Scalar, ...], why: str, when: str = "") -> Iterator[_Line]:
        left = [choice for choice in choices if f"{name}={choice}" not in machine.lacks]
        if len(left) > 1 and name not in space:
            yield _Line(name, _choices(left, when), why)

    if "batch_size" not in space:
        max_batch = preset.batch_size * BATCHES if preset else MAX_BATCH[kind]
        guess = f"; {preset.batch_size} is a good first guess on {preset.title}" if preset else ""
        batch = f"{{type: int, low: 32, high: {max_batch}, log: true}}"
        yield _Line("batch_size", batch, f"samples per step, on a logarithmic scale{guess}")
    yield from choice("loader.kind", (WORKERS, RESIDENT), "batches from worker processes, or on the device")
    in_workers = f"{{loader.kind: {WORKERS}}}"
    if "loader.num_workers" not in space:
        cores = machine.usable_cpus
        text = f"{{type: int, low: 0, high: {min(MAX_WORKERS, cores)}, when: {in_workers}}}"
        rule = workers_for(cores, preset.batch_size if preset else MAX_BATCH[kind])
        yield _Line("loader.num_workers", text, f"cores here: {cores}; the usual rule gives {rule}")
    workers = "{loader.num_workers: {min: 1}}"
    yield from choice("loader.prefetch_factor", (2, 4, 8), "batches that each worker keeps ready", workers)
    yield from choice("loader.pin_memory", (True, False), "copied while the GPU computes", in_workers)
    yield from choice("precision.amp", ("fp32", "bf16", "fp16"), "autocast to what this device supports")
    yield from choice("precision.tf32", (True, False), "for the remaining float32 products")
    if kind == "cuda":
        modes = ("eager", "default", "reduce-overhead", "graph")
        yield from choice("compile.mode", modes, "torch.compile; graph: a whole step as one CUDA graph")
    for name, values in space.items():
        changes = name.partition(".")[0] in OPEN_SECTIONS
        why = "changes what is trained: see constraints" if changes else "proposed by the pipeline"
        if preset and name == "model.hidden_size":
            why += f"; {preset.hidden_size} is usual on {preset.title}"
        yield _Line(name, _choices(list(values)), why)


def _baseline(offer: PipelineOptions) -> Iterator[_Line]:
    """Yields what most hand-written scripts use, and the pipeline's defaults for the rest."""
    script_values: Mapping[str, tuple[Scalar, str]] = {
        "loader.kind": (ROWS, "one Python item per sample, as in most hand-written datasets"),
        "loader.num_workers": (4, "DataLoader workers"),
        "batch_size": (64, "your batch size"),
        "precision.amp": ("fp32", "no autocast"),
        "device.malloc": ("default", "as in a plain script"),
    }
    for name, (value, why) in script_values.items():
        yield _Line(name, _value(value), why)
    for name, values in offer.space.items():
        if name in script_values:
            continue
        default = offer.default(name)
        if default is None:
            default = FIELDS[name].default if name in FIELDS else values[0]
        yield _Line(name, _value(default), "the pipeline's default")


def _constraints(machine: Machine) -> Iterator[_Line]:
    yield _Line("val_loss", "{max_ratio_to_baseline: 1.02}", "faster but no worse, after the same samples")
    if machine.devices[0].kind == "cuda":
        low, high = (round(100 * share) for share in MEMORY_TARGET)
        why = f"of the GPU's memory; a good batch fills {low} to {high}%"
        yield _Line("gpu_mem_peak_fraction", "{max: 0.9}", why)


def _align(lines: Iterator[_Line]) -> Iterator[str]:
    """Yields names, texts and comments in columns, or long lines with the comment before."""
    rows = list(lines)
    names = 1 + max(len(row.name) for row in rows)
    texts = max(len(row.text) for row in rows)
    for row in rows:
        line = f"  {row.name + ':':<{names}} {row.text}"
        if texts > _ROOM:
            yield from (f"  # {row.why}", line)
        else:
            yield f"{line:<{3 + names + texts}}  # {row.why}"


def _choices(values: list[Scalar], when: str = "") -> str:
    return f"{{type: categorical, choices: {_value(values)}{f', when: {when}' if when else ''}}}"


def _value(value: Any) -> str:
    """Returns a value as YAML on one line."""
    text = " ".join(to_yaml([value]).split())
    return text.removeprefix("- ") if text.startswith("- ") else text[1:-1]
