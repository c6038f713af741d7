"""Results, fixtures and the section in docs/gpus.md, out of what came back from a machine with a GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_day.calls import UNKNOWN
from gpu_day.steps import CALLS, ROOT

BEGIN, END = "<!-- devices: written by `gpu.py read` -->", "<!-- devices: end -->"
FIGURE = ("figure", "value", "low", "high", "bar", "unit", "repeats")

Row = Mapping[str, Any]


def read(folder: Path, into: Path, commit: str = "") -> int:
    """Writes what the calls in `folder` say into a checkout; returns 0 where there was anything.

    Args:
        commit: Of the code that ran, where its rows do not know it.
    """
    devices: dict[str, list[Row]] = {}
    call: Row = {}
    for row in rows_in(folder):
        if row["kind"] == "call":
            call = row if row["commit"] != UNKNOWN else {**row, "commit": commit or UNKNOWN}
            row = call
        devices.setdefault(call["device"], []).append({**row, "of": call})
    if not devices:
        print(f"There must be a call's rows in {folder}, but no CALL.jsonl is there. `gpu.py A` writes them.")
        return 1
    if any(row["of"]["rehearsal"] for rows in devices.values() for row in rows) and into.resolve() == ROOT:
        print("A rehearsal's figures are not results: name another folder with --into.")
        return 1
    for device, rows in devices.items():
        for path in _write(device, rows, into):
            print(path)
    return 0


def rows_in(folder: Path) -> Iterator[Row]:
    """Yields the rows of all calls; half a line at the end of one that was cut off is left out."""
    for path in sorted(path for call in CALLS for path in folder.rglob(f"{call}.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def _write(device: str, rows: list[Row], into: Path) -> Iterator[Path]:
    """Writes a device's files and yields their paths; of each thing, the latest."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", device).strip("-").lower()
    path = into / "benchmarks" / "results" / slug / "gpu.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    figures = {row["figure"]: row for row in known} | {
        row["figure"]: {
            **{name: row[name] for name in FIGURE},
            "command": f"python benchmarks/gpu.py {row['of']['call']} --only {row['step']}",
            "commit": row["of"]["commit"],
            "device": device,
        }
        for row in rows
        if row["kind"] == "figure"
    }
    yield _text(path, json.dumps([*figures.values()], indent=1) + "\n")
    for row in rows:
        if row["kind"] == "nvml":
            path = into / "tests" / "telemetry" / "recordings" / f"{slug}-{row['situation']}.json"
            about = {name: value for name, value in row.items() if name not in ("kind", "step", "of")}
            yield _text(path, json.dumps(about) + "\n")
    path = into / "docs" / "gpus.md"
    page = path.read_text(encoding="utf-8") if path.exists() else f"{BEGIN}\n{END}\n"
    yield _text(path, with_section(page, device, "\n".join(section(rows))))


def _text(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def with_section(page: str, name: str, text: str) -> str:
    """Returns the page with the device's section in place of an older one; other devices' stay."""
    head, _, rest = page.partition(BEGIN)
    body, _, tail = rest.partition(END)
    parts = re.split(r"^### ", body, flags=re.M)[1:]
    sections = {part.partition("\n")[0]: part.strip() for part in parts} | {name: f"{name}\n\n{text}".strip()}
    whole = "".join(f"\n### {part}\n" for part in sections.values())
    return f"{head}{BEGIN}\n{whole}\n{END}{tail}"


def section(rows: list[Row]) -> Iterator[str]:
    """Yields the lines of a device's section: its calls, its steps, the probe's answers, failed trials."""
    for call in {row["call"]: row for row in rows if row["kind"] == "call"}.values():
        versions = ", ".join(f"{name} {version}" for name, version in call["versions"].items() if version)
        yield (
            f"- Call {call['call']}{', a rehearsal' if call['rehearsal'] else ''}: {call['started'][:10]}, "
            f"commit {call['commit']}, Python {call['python']}, {versions}, {call['cores']} cores."
        )
    yield from ["", "| step | status | seconds | result |", "|---|---|---|---|"]
    for row in {row["step"]: row for row in rows if row["kind"] == "step"}.values():
        yield f"| {row['step']} | {row['status']} | {row['seconds']:.0f} | {_cell(row['result'])} |"
    yield from ["", "| asked | process | answer |", "|---|---|---|"]
    for row in {(row["question"], row["process"]): row for row in rows if row["kind"] == "probe"}.values():
        for name, answer in row["answer"].items():
            process = f"{row['process']} {row['workspace']}".strip()
            yield f"| {row['question']}: {name} | {process} | {_cell(json.dumps(answer))} |"
    yield from ["", "| trial or change | outcome |", "|---|---|"]
    for row in {row["number"]: row for row in rows if row["kind"] == "trial"}.values():
        if row["outcome"] != "measured":
            given = ", ".join(map(str, (row["pipeline"], *row["changes"].values())))
            yield f"| {given} | {row['outcome']}: {_cell(row['message'])} |"
    for row in rows:
        if row["kind"] == "change":
            change = row["change"]
            how = f"{change['kind']} over {change['extent']}"
            outcome = f"left out, {change['fault']}" if change["fault"] else how
            yield f"| {row['step']}: {change['changes']} | {_cell(outcome)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:300]
