"""A sweep that starts from what an earlier one of the same training measured."""

from __future__ import annotations

import pytest
from parts.noop import synthetic
from replays import Bench, spec_of, surface, throughput

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import Failure, FailureKind, Measurement
from sweeper.errors import EnvironmentStopError, NothingFeasibleError, UserError
from sweeper.sweep.folder.past import _subject


def origins(bench: Bench) -> list[str]:
    return [job.origin for job in bench.launcher.jobs if job.plan.repeats and job.stage == "search"]


def test_a_second_sweep_starts_from_the_first(bench: Bench):
    bench.run(spec_of(name="first"))
    assert not any(line.startswith("Starting from") for line in bench.watcher.lines)
    bench.run(spec_of(name="second", constraints={}))
    (said,) = [line for line in bench.watcher.lines if line.startswith("Starting from")]
    assert said.startswith("Starting from what `first` measured in ")
    assert any("the best of `first`" in why for why in origins(bench))
    again = bench.run(spec_of(name="second", constraints={}), extend=2)
    assert not again.stopped
    bench.run(spec_of(name="third", search={"warm_start": "off"}))
    assert not any("the best of" in why for why in origins(bench))


def test_an_earlier_sweep_that_is_named_must_exist(bench: Bench):
    for name in ("no-such", "/no/such/folder"):
        with pytest.raises(UserError, match="no sweep"):
            bench.run(spec_of(search={"warm_start": name}))
        # It is said at once, not after the data were prepared.
        assert bench.launcher.jobs == []
    assert not (bench.home / "sweeps" / "toy").exists()


def test_a_damaged_sweep_stops_no_other(bench: Bench):
    bench.run(spec_of(name="first"))
    (bench.home / "sweeps" / "first" / "sweep.yaml").write_text("about: {")
    bench.run(spec_of(name="second"))
    assert not any(line.startswith("Starting from") for line in bench.watcher.lines)
    with pytest.raises(EnvironmentStopError):
        bench.run(spec_of(name="third", search={"warm_start": "first"}))


def test_a_sweep_that_measured_nothing_is_no_start(bench: Bench):
    def fails(config: TrialConfig) -> Failure:
        return Failure(kind=FailureKind.CRASH, message="broken")

    with pytest.raises(NothingFeasibleError):
        bench.run(spec_of(name="first"), fails)
    with pytest.raises(UserError, match="has measured something, but 'first' has not"):
        bench.run(spec_of(name="second", search={"warm_start": "first"}))


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (["python", "train.py", "--lr", "1"], ["python", "train.py", "--lr", "2"], True),
        (["python", "-m", "a.train"], ["python", "-m", "b.train"], False),
        (["python", "-m", "a.train", "--lr", "1"], ["python", "-m", "a.train"], True),
        (["bash", "one.sh"], ["bash", "two.sh"], False),
    ],
)
def test_a_command_is_known_by_what_it_trains(one: list[str], other: list[str], alike: bool):
    assert (_subject({"command": one}) == _subject({"command": other})) is alike


def test_its_baseline_and_its_winner_are_measured_anew(bench: Bench):
    bench.run(spec_of(name="first"))

    def slower(config: TrialConfig) -> Measurement | Failure:
        return synthetic(throughput(config) / 3)

    ran = bench.run(spec_of(name="second"), slower)
    for each in ran.sweep.summary.records:
        assert each.measurement is not None
        assert each.measurement.throughput == pytest.approx(throughput(each.config) / 3)


def test_failures_are_remembered_with_their_reason(bench: Bench):
    def no_bf16(config: TrialConfig) -> Measurement | Failure:
        if config.precision.amp == "bf16":
            return Failure(kind=FailureKind.UNSUPPORTED, message="no bf16 here")
        return surface(config)

    bench.run(spec_of(name="first"), no_bf16)
    ran = bench.run(spec_of(name="second"), no_bf16)
    past = ran.sweep.journal.folder / "past.json"
    assert "no bf16 here" in past.read_text()
