"""The names in a sweep's folder, which all later versions of this schema read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from sweeper.core.job import SCHEMA, Job
from sweeper.core.measurement import Failure, Measurement, Report
from sweeper.core.past import PastSweep
from sweeper.core.place import TrialPlace
from sweeper.core.record import SearchResult
from sweeper.exports.schema import Export, OfPipeline, OfScript
from sweeper.exports.verification import Verification
from sweeper.race.log import Company, Ended, Started, Turned
from sweeper.results.numbers.confirmation_result import ConfirmationResult
from sweeper.schema import SweepSpec
from sweeper.schema.sections import (
    Confirm,
    ExecutionOptions,
    Measure,
    Production,
    ScriptOptions,
    SearchOptions,
)
from sweeper.sweep.phases.interference import Interference
from sweeper.trainer.checkpoint import Position

FILE = Path(__file__).with_name("stored_names.yaml")
ROOTS = (
    *(Job, Measurement, Failure, Report, TrialPlace, SearchResult, ConfirmationResult, Verification),
    *(Started, Company, Turned, Ended, Interference, PastSweep, Position),
)
OF_EXPORTS = (Export, OfPipeline, OfScript)


def parts(hint: Any) -> Iterator[Any]:
    """Yields the types inside a type."""
    yield hint
    for inner in get_args(hint):
        yield from parts(inner)


def names_of(root: type) -> dict[str, list[str]]:
    """Returns the fields of a stored type and of those within it; one with a default has a `?`."""
    known: dict[str, list[str]] = {}
    waiting = [root]
    while waiting:
        kind = waiting.pop()
        if kind.__name__ in known:
            continue
        known[kind.__name__] = [
            field.name + "?" * (_has_default(field)) for field in dataclasses.fields(kind)
        ]
        hints = get_type_hints(kind)
        waiting += [part for hint in hints.values() for part in parts(hint) if dataclasses.is_dataclass(part)]
    return known


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def now() -> dict[str, list[str]]:
    """Returns the names by type, as they are now."""
    names = {name: fields for root in (*ROOTS, *OF_EXPORTS) for name, fields in names_of(root).items()}
    sections = (SweepSpec, ScriptOptions, Measure, SearchOptions, Confirm, ExecutionOptions, Production)
    specification = {
        f"{kind.__name__} (YAML)": [f"{name}?" for name in kind.model_fields] for kind in sections
    }
    return dict(sorted(names.items())) | specification


def test_no_stored_name_is_changed_without_another_schema():
    stored = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    assert stored["schema"] == SCHEMA
    names = now()
    for kind, fields in stored["names"].items():
        lost = {field.rstrip("?") for field in fields} - {field.rstrip("?") for field in names[kind]}
        assert not lost, (
            f"{kind}: earlier files have {lost}: increase SCHEMA, and translate them as they are read"
        )
        added = [name for name in names[kind] if name.rstrip("?") not in {f.rstrip("?") for f in fields}]
        assert all(name.endswith("?") for name in added), f"{kind}: earlier files lack {added}"


if __name__ == "__main__":
    FILE.write_text(
        yaml.safe_dump({"schema": SCHEMA, "names": now()}, sort_keys=False, width=100), encoding="utf-8"
    )
