"""The built-in probes through the one suite, and third parties' probes that go wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from distributions import install

from sweeper.telemetry.probes import BUILTIN, AddedProbe, added_names, make_probes
from sweeper.testing.probe_conformance import ProbeConformance


class TestHostProbe(ProbeConformance):
    @pytest.fixture
    def name(self) -> str:
        return "host"

    @pytest.fixture
    def series(self) -> re.Pattern[str]:
        return re.compile(r"(cpu|tree|loader|host|memory|disk|shm)_[a-z0-9_]+")


class TestNvmlProbe(ProbeConformance):
    """Without a GPU; `test_telemetry_nvml` has the readings of one."""

    @pytest.fixture
    def name(self) -> str:
        return "nvml"

    @pytest.fixture
    def series(self) -> re.Pattern[str]:
        return re.compile(r"gpu_[a-z0-9_]+")

    @pytest.fixture
    def reads_here(self) -> bool:
        return False


def test_without_other_distributions_there_are_the_built_in_ones():
    assert added_names() == ()
    assert [type(each) for each in make_probes()] == list(BUILTIN.values())


PROBE = """\
from pathlib import Path
from sweeper.telemetry.probe import Probe

class Odd(Probe):
    name, count = "odd", 0
    def open(self, pid, device_uuid): pass
    def read(self):
        self.count += 1
        {read}
    def close(self): Path({path!r}).write_text("closed")
"""


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AddedProbe]:
    """Returns the probe of a distribution whose `read` ends with a statement."""

    def make(read: str = "return {}", module: str = "odd_probe", value: str = "") -> AddedProbe:
        text = PROBE.format(read=read, path=str(tmp_path / "closed"))
        points = {"sweeper.probes": {"odd": value or f"{module}:Odd"}}
        install(tmp_path, "odd-probe", points, {f"{module}.py": text})
        monkeypatch.syspath_prepend(str(tmp_path))
        assert added_names() == ("odd",)
        *others, probe = make_probes()
        assert len(others) == len(BUILTIN)
        assert isinstance(probe, AddedProbe)
        probe.open(1, "")
        return probe

    return make


def test_a_probe_that_raises_is_given_up_with_the_reason_and_closed(added, tmp_path):
    probe = added("return {'odd_x_pct': 1 / (3 - self.count)}", "odd_raising")
    assert [probe.read() for _ in range(4)] == [{"odd_x_pct": 0.5}, {"odd_x_pct": 1.0}, {}, {}]
    assert probe.missing == {"odd": "ZeroDivisionError: division by zero"}
    probe.close()
    assert (tmp_path / "closed").read_text() == "closed"


def test_series_that_are_not_its_own_or_no_numbers_are_left_out(added):
    own = "'odd_a_pct': 7, 'odd_b_w': float('nan'), 'odd_c_w': 'a'"
    probe = added(f"return {{'gpu_util_pct': 1.0, 'odd_../x': 1.0, {own}}}", "odd_naming")
    assert probe.read() == {"odd_a_pct": 7.0}
    rule = "a series must be called odd_..., in lower-case letters, digits and `_`"
    assert probe.missing == {
        "gpu_util_pct": rule,
        "odd_../x": rule,
        "odd_b_w": "a reading must be a finite number, but got nan",
        "odd_c_w": "a reading must be a finite number, but got 'a'",
    }


def test_a_probe_that_cannot_be_imported_is_said(added):
    probe = added(value="nowhere_to_be_found:Odd", module="odd_absent")
    assert (probe.read(), probe.between()) == ({}, {})
    assert "`probe: odd` comes from odd-probe 1.0, but its entry point" in probe.missing["odd"]
    probe.close()


def test_a_name_of_a_built_in_probe_costs_the_added_ones_alone(tmp_path, monkeypatch):
    install(tmp_path, "thief", {"sweeper.probes": {"host": "thief:Odd"}}, {})
    monkeypatch.syspath_prepend(str(tmp_path))
    *others, probe = make_probes()
    assert [type(each) for each in others] == list(BUILTIN.values())
    probe.open(1, "")
    assert "must not reuse a built-in name, but `host` of thief 1.0 does" in probe.missing["added_probes"]
