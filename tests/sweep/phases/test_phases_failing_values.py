"""A choice that two trials failed with alike, and none ran with: it leaves the space during the search."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from parts.noop import synthetic
from parts.replay import ReplayLauncher
from replays import Bench, Watcher, spec_of, surface

from sweeper.core.config import TrialConfig
from sweeper.core.measurement import DeviceInfo, Failure, FailureKind
from sweeper.core.record import TrialRecord
from sweeper.errors import EnvironmentStopError
from sweeper.sweep.folder.journal import Journal
from sweeper.sweep.phases.dropped_values import FailingValues, choices_of, without_numbers
from sweeper.sweep.run import run_sweep
from sweeper.tracking import NullTracker

FUSED = {"type": "categorical", "choices": [True, False]}
FORMATS = {"type": "categorical", "choices": ["contiguous", "channels_last"]}
RULES = {"type": "categorical", "choices": ["adamw", "adam", "sgd"]}
SPACE = {
    "batch_size": {"type": "int", "low": 64, "high": 1024, "log": True},
    "loader.kind": {"type": "categorical", "choices": ["rows", "workers", "resident"]},
    "loader.prefetch_factor": {"type": "categorical", "choices": [2, 4], "when": {"loader.kind": "workers"}},
    "memory_format": FORMATS,
    "optimizer.name": RULES,
}
SPEC = spec_of(
    space=SPACE, baseline={"loader.kind": "rows"}, also_try=[], confirm={"rounds": 0}, search={"trials": 24}
)
SGD = "optimizer.name: sgd removed from the space (2 trials failed alike, and none succeeded: "
FORMAT = "memory_format: channels_last removed from the space (2 trials failed alike, and none succeeded: "


# -- the rule ---------------------------------------------------------------------------------------------


def records(*outcomes: tuple[dict[str, Any], Any]) -> list[TrialRecord]:
    """Trials over the defaults: each with its changes, and its message or None where it ran."""
    found = []
    for number, (changes, message) in enumerate(outcomes):
        outcome = synthetic(1.0) if message is None else message
        if isinstance(outcome, str):
            outcome = Failure(kind=FailureKind.UNSUPPORTED, message=outcome)
        config = TrialConfig().replace({"loader.kind": "rows", **changes})
        found.append(TrialRecord(number=number, uid="", stage="search", config=config, outcome=outcome))
    return found


def left(*outcomes: tuple[dict[str, Any], Any], passed: Any = ()) -> dict[str, list[Any]]:
    """What has left after these trials; the same in whatever order they ended."""
    answers = []
    for order in (1, -1):
        failing = FailingValues(SPEC.space, passed)
        for record in records(*outcomes)[::order]:
            failing.add(record)
            failing.choices_to_drop()
        answers.append({name: list(values) for name, values in failing.choices_to_drop().items()})
    assert answers[0] == answers[1]
    return answers[0]


RAN = ({}, None)
SGD_FAILED = ({"optimizer.name": "sgd"}, "no sgd")


def test_two_failures_with_one_choice_in_common():
    assert left(RAN, SGD_FAILED) == {}
    assert left(RAN, SGD_FAILED, ({"optimizer.name": "sgd", "batch_size": 512}, "no sgd")) == {
        "optimizer.name": ["sgd"]
    }


def test_numbers_do_not_matter_and_other_messages_and_kinds_do():
    other = ({"optimizer.name": "sgd"}, "no sgd for 128 rows at 0x7f00")
    assert left(RAN, other, ({"optimizer.name": "sgd"}, "no sgd for 64 rows at 0x7fff")) != {}
    assert left(RAN, SGD_FAILED, other) == {}
    crash = Failure(kind=FailureKind.CRASH, message="no sgd")
    assert left(RAN, SGD_FAILED, ({"optimizer.name": "sgd"}, crash)) == {}
    assert without_numbers("a 1,024 at 0xab: 3.5") == "a # at #: #"


@pytest.mark.parametrize("kind", [FailureKind.OOM, FailureKind.TIMEOUT, FailureKind.LOST, FailureKind.SHM])
def test_memory_time_and_the_machine_are_no_choices_fault(kind: FailureKind):
    failure = Failure(kind=kind, message="it ended")
    assert left(RAN, *[({"optimizer.name": "sgd"}, failure)] * 3) == {}


def test_a_choice_that_ran_once_stays():
    assert left(RAN, SGD_FAILED, SGD_FAILED, ({"optimizer.name": "sgd"}, None)) == {}


def test_of_several_suspects_none_until_one_stands_out():
    both = {"optimizer.name": "sgd", "memory_format": "channels_last"}
    assert left(RAN, (both, "no"), (both, "no")) == {}
    assert left(RAN, (both, "no"), (both, "no"), ({"optimizer.name": "sgd"}, "no")) == {
        "optimizer.name": ["sgd"]
    }
    # One of them runs without the other.
    assert left(RAN, (both, "no"), (both, "no"), ({"memory_format": "channels_last"}, None)) == {
        "optimizer.name": ["sgd"]
    }


def test_of_two_suspects_the_one_that_ran_in_the_preflight_is_not_at_fault():
    both = {"optimizer.name": "sgd", "loader.kind": "resident"}
    assert left(RAN, (both, "no"), (both, "no"), passed=[("loader.kind", "resident")]) == {
        "optimizer.name": ["sgd"]
    }
    # Alone it is, whatever the preflight found.
    assert left(RAN, SGD_FAILED, SGD_FAILED, passed=[("optimizer.name", "sgd")]) != {}


def test_failures_that_one_choice_explains_tell_nothing_of_another():
    both = {"optimizer.name": "sgd", "memory_format": "channels_last"}
    sgd = {"optimizer.name": "sgd"}
    assert left(RAN, (both, "no"), (both, "no"), (sgd, "no"), (sgd, "no")) == {"optimizer.name": ["sgd"]}


def test_a_parameter_keeps_a_choice():
    others = {"memory_format": "channels_last", "loader.kind": "resident"}
    outcomes = [
        ({"optimizer.name": name, **rest}, f"no {name}")
        for name in ("adam", "sgd", "adamw")
        for rest in ({}, others)
    ]
    assert left(*outcomes) == {"optimizer.name": ["adam", "sgd"]}


def test_a_choice_without_effect_is_no_suspect():
    resident = TrialConfig().replace({"loader.kind": "resident"})
    assert ("loader.prefetch_factor", 2) not in set(choices_of(resident, SPEC.space))
    workers = TrialConfig().replace({"loader.kind": "workers", "loader.num_workers": 2})
    assert ("loader.prefetch_factor", 2) in set(choices_of(workers, SPEC.space))


# -- in a sweep -------------------------------------------------------------------------------------------


def without(*bad: tuple[str, Any], kind: FailureKind = FailureKind.UNSUPPORTED) -> Callable[..., Any]:
    def answer(config: TrialConfig) -> Any:
        for name, value in bad:
            if config.flatten()[name] == value:
                return Failure(kind=kind, message=f"no {value} with a batch of {config.batch_size}")
        return surface(config)

    return answer


def entries_of(bench: Bench) -> list[Any]:
    return list(Journal(bench.home / "sweeps" / "toy").trials())


def with_value(bench: Bench, name: str, value: Any) -> int:
    return sum(entry.job.config.flatten()[name] == value for entry in entries_of(bench))


NO_SGD = without(("optimizer.name", "sgd"))


@pytest.mark.parametrize("sampler", ["auto", "tpe", "random"])
def test_after_two_failures_it_is_not_asked_again(bench: Bench, sampler: str):
    spec = SPEC.model_copy(
        update={"search": SPEC.search.model_copy(update={"sampler": sampler, "trials": 40})}
    )
    bench.run(spec, NO_SGD)
    assert with_value(bench, "optimizer.name", "sgd") == 2
    assert sum(line.startswith(SGD) for line in bench.watcher.lines) == 1
    assert len(entries_of(bench)) == 41
    # Every trial was told with a value for each parameter of the whole space.
    assert all(set(entry.result.params) == set(SPACE) for entry in entries_of(bench) if entry.number)


def test_a_parameter_with_one_choice_left_is_decided_and_nothing_told_is_forgotten(bench: Bench):
    bench.run(SPEC, without(("memory_format", "channels_last")))
    assert with_value(bench, "memory_format", "channels_last") == 2
    assert any(line.startswith(FORMAT) for line in bench.watcher.lines)
    assert all(set(entry.result.params) == set(SPACE) for entry in entries_of(bench) if entry.number)
    file = bench.home / "sweeps" / "toy" / "study.log"
    study = optuna.load_study(study_name="toy", storage=JournalStorage(JournalFileBackend(str(file))))
    bad = {e.number for e in entries_of(bench) if e.job.config.memory_format == "channels_last"}
    numbers = {trial.user_attrs.get("sweeper.number") for trial in study.trials} - {None}
    told = {entry.number for entry in entries_of(bench) if entry.result is not None}
    assert numbers == told - bad


class Killed(BaseException):
    """Ends the supervisor, as kill -9 would."""


@pytest.mark.parametrize("bad", [("optimizer.name", "sgd"), ("memory_format", "channels_last")])
def test_a_sweep_that_is_cut_off_anywhere_decides_the_same(bench: Bench, tmp_path: Any, bad: Any):
    whole = Bench(tmp_path / "whole")
    whole.run(SPEC, without(bad))
    expected = [entry.job.config for entry in entries_of(whole)]
    answer = without(bad)
    for _ in range(60):
        calls = [0]

        def dying(config: TrialConfig, calls: list[int] = calls) -> Any:
            calls[0] += 1
            if calls[0] > 2:
                raise Killed
            return answer(config)

        try:
            bench.run(SPEC, dying)
        except Killed:
            continue
        break
    assert [entry.job.config for entry in entries_of(bench)] == expected
    assert with_value(bench, *bad) == 2


class Releasing(Watcher):
    """Sets `said` when a line says that SGD has left."""

    def __init__(self) -> None:
        super().__init__()
        self.said = threading.Event()

    def line(self, text: str) -> None:
        super().line(text)
        if text.startswith("optimizer.name: sgd removed"):
            self.said.set()


def test_a_choice_comes_back_where_a_trial_under_way_runs_with_it(bench: Bench):
    """The first trial with SGD ends only after it left; until then every other one with it fails."""
    gpus = [DeviceInfo(kind="cuda", name="NVIDIA A10", uuid=f"GPU-{i}", memory_gib=22.5) for i in "abc"]
    watcher, seen, lock = Releasing(), [0], threading.Lock()

    def answer(config: TrialConfig) -> Any:
        if config.optimizer.name != "sgd":
            return surface(config)
        with lock:
            seen[0] += 1
            mine = seen[0]
        if mine == 1:
            assert watcher.said.wait(20)
        elif not watcher.said.is_set():
            return Failure(kind=FailureKind.UNSUPPORTED, message="no sgd")
        return surface(config)

    spec = SPEC.model_copy(
        update={"search": SPEC.search.model_copy(update={"sampler": "random", "trials": 40})}
    )
    launcher = ReplayLauncher(answer, devices=gpus)
    run_sweep(bench.home, spec, NullTracker(), watcher, launch=lambda folder: launcher)
    assert watcher.said.is_set()
    assert with_value(bench, "optimizer.name", "sgd") > 3
    assert len(entries_of(bench)) == 41


def test_errors_that_a_choice_explains_do_not_end_the_sweep(bench: Bench):
    """The first three searched trials meet one error, the first two of them with a format that never runs."""
    left = [3]

    def answer(config: TrialConfig) -> Any:
        if config.batch_size == 64 or not left[0]:
            return surface(config)
        left[0] -= 1
        return Failure(kind=FailureKind.USER_ERROR, message="it broke")

    space = {"batch_size": SPACE["batch_size"], "memory_format": FORMATS}
    bench.run(spec_of(space=space, also_try=[], confirm={"rounds": 0}, search={"trials": 12}), answer)
    assert not left[0]
    formats = [entry.job.config.memory_format for entry in entries_of(bench)[1:]]
    assert formats[:3] == ["channels_last", "channels_last", "contiguous"]
    assert len(formats) == 12


def test_code_that_is_broken_altogether_still_ends_it(bench: Bench):
    def broken(config: TrialConfig) -> Any:
        if config == SPEC.baseline_config():
            return surface(config)
        return Failure(kind=FailureKind.USER_ERROR, message="it broke")

    with pytest.raises(EnvironmentStopError, match="the same error ended 3 trials: it broke"):
        bench.run(SPEC, broken)
    assert len(entries_of(bench)) <= 12
