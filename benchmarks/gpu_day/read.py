"""Results, fixtures and the table in docs/gpus.md, out of what came back from a machine with a GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_day.steps import CALLS, ROOT, STEPS, UNKNOWN

BEGIN, END = "<!-- devices: written by `gpu.py read` -->", "<!-- devices: end -->"
SURFACE_CALL = 4
FIGURE = ("figure", "value", "low", "high", "bar", "unit", "repeats")

Row = Mapping[str, Any]


@dataclass(slots=True)
class Device:
    """What came back from one model of device; of each thing, the latest.

    Attributes:
        calls: The rows that began a call, by its number.
        steps: How steps ended, by name.
        figures: By benchmark and figure.
        trials: By number.
        recordings: What NVML said, by situation.
    """

    name: str
    calls: dict[int, Row] = field(default_factory=dict)
    steps: dict[str, Row] = field(default_factory=dict)
    figures: dict[tuple[str, str], Row] = field(default_factory=dict)
    trials: dict[int, Row] = field(default_factory=dict)
    recordings: dict[str, Row] = field(default_factory=dict)

    @property
    def slug(self) -> str:
        """What its files are called."""
        return re.sub(r"[^A-Za-z0-9]+", "-", self.name).strip("-").lower()


def read(folder: Path, into: Path, commit: str = "") -> int:
    """Writes what the calls in `folder` found into a checkout; returns 0 where there was anything.

    Args:
        commit: Of the code that ran, where its rows do not know it.
    """
    devices = devices_of(rows_in(folder), commit)
    if not devices:
        print(f"There is no call-*.jsonl with a finished step in {folder}.")
        return 1
    for device in devices:
        if any(call["rehearsal"] for call in device.calls.values()) and into.resolve() == ROOT:
            print("A rehearsal's figures are not results: name another folder with --into.")
            return 1
    for device in devices:
        for path in _write(device, into):
            print(path)
        for surface in folder.rglob("lstm.jsonl") if SURFACE_CALL in device.calls else ():
            text = surface.read_text(encoding="utf-8")
            print(_text(into / "benchmarks" / "surfaces" / device.slug / surface.name, text))
    for home in sorted(folder.rglob("call-2-home.tar.gz")):
        print(f"For MLflow: tar xzf {home} -C DIR && sweeper sync --home DIR/home")
    return 0


def rows_in(folder: Path) -> Iterator[Row]:
    """Yields the rows of all calls; half a line at the end of one that was cut off is left out."""
    for path in sorted(folder.rglob("call-*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def devices_of(rows: Iterable[Row], commit: str = "") -> Sequence[Device]:
    """Returns what the rows say, by model of device; `commit` is as of `read`."""
    found: dict[str, Device] = {}
    call: Row = {}
    for row in rows:
        kind = row["kind"]
        if kind == "call":
            call = row if row["commit"] != UNKNOWN else {**row, "commit": commit or UNKNOWN}
            device = found.setdefault(row["device"], Device(row["device"]))
            device.calls[row["call"]] = call
        elif kind == "step":
            device.steps[row["step"]] = row
        elif kind == "figure":
            command = f"python benchmarks/gpu.py {call['call']} --only {row['step']}"
            about = {"command": command, "commit": call["commit"], "device": device.name}
            device.figures[row["benchmark"], row["figure"]] = {**row, **about}
        elif kind == "trial":
            device.trials[row["number"]] = row
        elif kind == "nvml":
            device.recordings[row["situation"]] = row
    return [device for device in found.values() if device.steps]


def _write(device: Device, into: Path) -> Iterator[Path]:
    """Writes a device's files and yields their paths."""
    by_benchmark: dict[str, list[Row]] = {}
    for (benchmark, _), row in device.figures.items():
        by_benchmark.setdefault(benchmark, []).append(row)
    for benchmark, rows in by_benchmark.items():
        path = into / "benchmarks" / "results" / device.slug / f"{benchmark}.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        new = {row["figure"] for row in rows}
        kept = [row for row in known if row["figure"] not in new]
        rows = [{name: row[name] for name in (*FIGURE, "command", "commit", "device")} for row in rows]
        yield _text(path, json.dumps([*kept, *rows], indent=1) + "\n")
    for situation, row in device.recordings.items():
        path = into / "tests" / "telemetry" / "recordings" / f"{device.slug}-{situation}.json"
        about = {name: value for name, value in row.items() if name not in ("kind", "step")}
        yield _text(path, json.dumps(about) + "\n")
    path = into / "docs" / "gpus.md"
    page = path.read_text(encoding="utf-8") if path.exists() else f"{BEGIN}\n{END}\n"
    yield _text(path, with_section(page, device.name, "\n".join(section(device))))


def _text(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def with_section(page: str, name: str, text: str) -> str:
    """Returns the page with the device's section in place of an older one; other devices' stay."""
    head, _, rest = page.partition(BEGIN)
    body, _, tail = rest.partition(END)
    sections = {each.partition("\n")[0]: each.strip() for each in re.split(r"^### ", body, flags=re.M)[1:]}
    sections[name] = f"{name}\n\n{text}".strip()
    whole = "".join(f"\n### {each}\n" for each in sections.values())
    return f"{head}{BEGIN}\n{whole}\n{END}{tail}"


def section(device: Device) -> Iterator[str]:
    """Yields the lines of a device's section: its calls, its steps, its figures, its failed trials."""
    for number, call in sorted(device.calls.items()):
        versions = ", ".join(f"{name} {each}" for name, each in call["versions"].items() if each)
        rehearsal = " A rehearsal on the CPU." if call["rehearsal"] else ""
        yield (
            f"- Call {number}, {CALLS[number]}: {call['started'][:10]}, commit {call['commit']}, Python "
            f"{call['python']}, {versions}, {call['cores']} cores.{rehearsal}"
        )
    yield from ["", "| step | status | seconds | found |", "|---|---|---|---|"]
    for step in STEPS:
        if row := device.steps.get(step.name):
            yield f"| {step.name} | {row['status']} | {row['seconds']:.0f} | {_cell(row['found'])} |"
    yield from ["", "| figure | value | 95% interval | bar | |", "|---|---|---|---|---|"]
    for row in device.figures.values():
        interval = f"[{_number(row['low'])}, {_number(row['high'])}]" if row["low"] != row["high"] else ""
        met = {True: "met", False: "**missed**", None: ""}[row["met"]]
        value = f"{_number(row['value'])} {row['unit']}".strip()
        yield f"| {_cell(row['figure'])} | {value} | {interval} | {row['bar']} | {met} |"
    unmeasured = [row for row in device.trials.values() if row["outcome"] != "measured"]
    if unmeasured:
        yield from ["", "| trial | configuration | outcome | message |", "|---|---|---|---|"]
    for row in unmeasured:
        given = ", ".join(map(str, (row["pipeline"], *row["changes"].values())))
        yield f"| {row['number']} | {given} | {row['outcome']} | {_cell(row.get('message', ''))} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:300]
