"""What `sweeper` exports: a name is added on purpose, and none is taken away."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sweeper

NAMES = {
    *("Pipeline", "Prepared", "Samples", "Source", "TrialConfig", "UserError"),
    *("Meter", "Sweep", "__version__", "load", "meter"),
    *("confirm", "export", "judge", "run", "tune", "watch"),
    *("ParquetSource", "ShardSource"),
}


def test_the_public_names_are_these():
    assert set(sweeper.__all__) == set(dir(sweeper)) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_can_be_imported_and_says_what_it_is(name: str):
    value = getattr(sweeper, name)
    assert isinstance(value, str) or value.__doc__


def test_no_other_name_is_there():
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        sweeper.lode  # noqa: B018


def test_a_script_that_meters_imports_nothing_else():
    code = "import sys; before = set(sys.modules); import sweeper; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {name for name in done.stdout.split() if name.startswith("sweeper")}
    assert ours == {"sweeper", "sweeper._version", "sweeper.script", "sweeper.script.metering"}
    assert not {"torch", "numpy", "pydantic", "optuna"} & set(done.stdout.split())
