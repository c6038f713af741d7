"""Provides the conformance suite of export formats. Derive a test class and give it a `form` fixture.

class TestCompact(ExportFormatConformance):
    @pytest.fixture
    def form(self):
        return "compact"
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sweeper.analysis.judge import Yardstick
from sweeper.analysis.summary import Summary
from sweeper.core.codec import decode
from sweeper.core.config import TrialConfig
from sweeper.core.export_formats import FORMATS
from sweeper.core.loaders import WORKERS
from sweeper.core.record import TrialRecord
from sweeper.errors import UserError
from sweeper.export import exported, read, rendered
from sweeper.spec import SweepSpec
from sweeper.testing.noop import synthetic

PASSWORD, SECRET = "pa55-of-a-url", "pa55-of-the-shell"
WEIGHTS = f"https://reader:{PASSWORD}@example.org/weights.pt"
HOSTILE = "$(touch x) `id` ; rm -rf '\"\\ #%\n!& é"
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "half": {"batch_size": 512, "precision.amp": "bf16", "optimizer.lr": 3e-5, "optimizer.lr_rule": "sqrt"},
    "hostile": {
        "loader.kind": WORKERS,
        "loader.num_workers": 8,
        "model.name": HOSTILE,
        "model.depth": None,
    },
}
SPEC: Mapping[str, Any] = {
    "name": "toy",
    "pipeline": "toy",
    "space": {"batch_size": {"type": "int", "low": 8, "high": 9000}},
    "baseline": {},
}
SCRIPT: Mapping[str, Any] = {
    "command": ["python", "train.py", "--batch-size", "4321"],
    "env": {"MODE": HOSTILE},
    "files": {},
    "params": {"bs": 4321},
}


def export_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the export of a sweep that never ran; its winner has `settings`, at 1,000 samples/s."""
    config = TrialConfig().replace({"model.weights": WEIGHTS, **settings})
    record = TrialRecord(number=0, uid="uid-0", stage="baseline", config=config, outcome=synthetic(1000.0))
    summary = Summary(
        name="toy",
        state="finished",
        device="CPU",
        reason="",
        synthetic=False,
        yardstick=Yardstick(record),
        winner=record,
        ratio=None,
        baseline_throughput=None,
        per_size=(),
        per_loader=(),
        counts={},
        production_samples=None,
        records=(record,),
    )
    return exported(summary, SweepSpec.from_dict(SPEC))


def export_of_script() -> dict[str, Any]:
    """Returns the export of a `command`."""
    of_pipeline = ("pipeline", "data", "config")
    return {**{k: v for k, v in export_of({}).items() if k not in of_pipeline}, **SCRIPT}


class ExportFormatConformance:
    """Override the fixture `form`; pytest collects the rest."""

    @pytest.fixture(params=CONFIGS)
    def value(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        """Returns the export of a pipeline's configuration."""
        return export_of(CONFIGS[request.param])

    def test_a_text_is_a_function_of_the_export(self, form: str, value: dict[str, Any]) -> None:
        """The same export gives the same text, in whole lines; the export is not changed."""
        before = copy.deepcopy(value)
        text = rendered(value, form)
        assert text.endswith("\n")
        assert rendered(value, form) == text
        assert value == before

    def test_the_settings_are_in_it(self, form: str) -> None:
        """The batch size is in the text, unless the text trains from another file."""
        if not FORMATS.get(form).runs_export:
            for size in (4321, 8642):
                assert str(size) in rendered(export_of({"batch_size": size}), form)

    def test_it_reads_back_where_it_says_so(self, form: str, value: dict[str, Any], tmp_path: Path) -> None:
        """`sweeper train` gets the same export and the same configuration."""
        path = tmp_path / f"best{FORMATS.get(form).suffix}"
        path.write_text(rendered(value, form), encoding="utf-8")
        if FORMATS.get(form).reads_back:
            found = read(path)
            assert found == json.loads(json.dumps(value))
            assert decode(TrialConfig, found["config"]) == decode(TrialConfig, value["config"])
        else:
            with pytest.raises(UserError):
                read(path)

    def test_no_secret_is_in_it(
        self, form: str, value: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The text has neither a password in a URL nor one from the environment."""
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        text = rendered(value, form)
        assert PASSWORD not in text
        assert SECRET not in text

    def test_a_script_has_a_text_or_a_reason(self, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A format that does not support a `command` says so in one line."""
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        try:
            text = rendered(export_of_script(), form)
        except UserError as error:
            text, refused = f"{error}\n", True
        else:
            refused = False
        assert not refused or (text.count("\n") == 1 and "it failed" not in text), text
        assert text.endswith("\n")
        assert SECRET not in text
