"""What trains otherwise is refused, what trains the same is not: scripts that run, with planted changes."""

from __future__ import annotations

import functools
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from sweeper.core.recording import Recording
from sweeper.race.record import HOGWILD, Record, extent_of
from sweeper.race.verify import RACES, Answer, Claim, Reference
from sweeper.script.changes import FILE_VARIABLE, load_changes, variable_of
from sweeper.script.changes.change import CLOSE, DRAWS, EXACT, SINGLE
from sweeper.script.run.watch import record
from sweeper.tuning.verifier import missing_of

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
PLANTED = HERE / "planted.py"
SCRIPTS = {"WRONG": ("train.py",), "WRONG_CAREFUL": ("careful.py",), "WRONG_WORKERS": ("careful.py", "2")}
NONE: Mapping[str, str] = MappingProxyType({})
LISTS = runpy.run_path(str(PLANTED))


class Verified:
    """A script's records, with which those with changes are compared."""

    def __init__(self, *words: str, folder: Path = HERE) -> None:
        self._command, self._folder = [sys.executable, *words], folder
        self.reference = Reference()
        self.reference.enter(self.record())

    def record(
        self, changes: Mapping[str, str] = NONE, shift: int = 0, env: Mapping[str, str] = NONE
    ) -> Record:
        recording = Recording(batches=40, seconds=60.0, shift=shift)
        env = {FILE_VARIABLE: str(PLANTED), **variable_of(changes), **env}
        return record(self._command, self._folder, recording, env=env)

    def answer(
        self, changes: Mapping[str, str], claim: Claim, env: Mapping[str, str] = NONE
    ) -> tuple[Answer, Record]:
        with_changes = self.record(changes, env=env)
        assert not with_changes.failure
        answer = self.reference.answer(with_changes, claim)
        while shifts := self.reference.shifts_wanted(claim, answer):
            self.reference.enter(self.record(shift=shifts[0]), shifts[0])
            answer = self.reference.answer(with_changes, claim)
        return answer, with_changes

    def planted(self, *names: str, **claim: object) -> Answer:
        """Returns the answer for planted changes, which claim what they declare."""
        changes = [load_changes(str(PLANTED))[name] for name in names]
        kinds = (EXACT, CLOSE, DRAWS)
        claimed = Claim(kind=max((change.kind for change in changes), key=kinds.index))
        if claim:
            claimed = Claim(**claim)  # type: ignore[arg-type]
        answer, with_changes = self.answer(dict.fromkeys(names, "on"), claimed)
        assert not any(with_changes.changes.values())
        return answer


@functools.cache
def verified(*words: str) -> Verified:
    return Verified(*words)


@pytest.fixture
def script() -> Verified:
    return verified("train.py")


def names(which: str) -> list[str]:
    return [each.__name__ for each in LISTS[which]]


# What needs no look at the batches: all else is told from other draws by nothing but the losses.
SEEN_BESIDE_OTHER_DRAWS = (
    "drops_last",
    "skips_samples",
    "freezes_a_layer",
    "other_rate",
    "shorter_validation",
)


@pytest.mark.soak
@pytest.mark.parametrize("name", SEEN_BESIDE_OTHER_DRAWS)
def test_other_draws_are_no_excuse_for_less_work(script: Verified, name: str) -> None:
    assert script.planted(f"{name}_close", kind=DRAWS, rounding=HOGWILD).fault


@pytest.mark.soak
def test_more_workers_are_the_same_but_for_their_draws(tmp_path: Path) -> None:
    # Its rows are cropped and turned at random, by torch's own generator.
    text = (HERE / "careful.py").read_text(encoding="utf-8")
    assert "self.own.random()" in text
    (tmp_path / "train.py").write_text(text.replace("self.own.random()", "torch.rand(())"))
    script = Verified("train.py", folder=tmp_path)
    workers = {"augmentation_workers": "cores"}
    answer, _ = script.answer(workers, Claim(kind=DRAWS, rounding=HOGWILD))
    assert (answer.kind, answer.fault) == (DRAWS, "")
    answer, _ = script.answer(workers, Claim(kind=EXACT))
    assert answer.fault
    answer, _ = script.answer({**workers, "drops_last_close": "on"}, Claim(kind=DRAWS, rounding=HOGWILD))
    assert answer.fault


def test_a_record_crosses_epochs_and_evaluations(script: Verified) -> None:
    assert extent_of(script.reference.records[0]) == "83 steps, the ends of 2 epochs, 2 evaluations"


# One of each part of a training: its samples, loss, updates, evaluations.
SOME = ("skips_samples", "half_the_labels", "other_rate", "shorter_validation")


@pytest.mark.parametrize(
    ("which", "name"),
    [
        pytest.param(which, f"{name}_close", marks=[] if name in SOME else pytest.mark.soak)
        for which in SCRIPTS
        for name in names(which)
    ],
)
def test_a_wrong_change_is_refused(which: str, name: str) -> None:
    answer = verified(*SCRIPTS[which]).planted(name)
    assert answer.fault
    assert not answer.is_unknown


@pytest.mark.soak
def test_half_precision_is_not_exact(script: Verified) -> None:
    assert script.planted("half_precision_exact").fault


@pytest.mark.parametrize("kind", ["exact", pytest.param("close", marks=pytest.mark.soak)])
def test_harmless_changes_are_not(script: Verified, kind: str) -> None:
    assert script.planted(*(f"{name}_{kind}" for name in names("HARMLESS"))) == Answer(kind=EXACT)


@pytest.mark.soak
@pytest.mark.parametrize(("noise", "is_known"), [("1e-6", True), ("0.3", False)])
def test_a_script_that_does_not_repeat_itself(tmp_path: Path, noise: str, is_known: bool) -> None:
    text = (HERE / "train.py").read_text(encoding="utf-8")
    loss = "nn.functional.cross_entropy(model(batch), labels)"
    text = text.replace(f"{loss}.backward()", f"((1 + {noise} * system.random()) * {loss}).backward()")
    # The operating system's generator, which no seed reaches.
    head = "import random\nsystem = random.SystemRandom()\n"
    (tmp_path / "train.py").write_text(head + text, encoding="utf-8")
    script = Verified("train.py", folder=tmp_path)
    harmless = script.planted("nothing_exact")
    assert harmless.is_unknown is not is_known
    if is_known:
        assert (harmless.kind, harmless.fault) == (CLOSE, "")
        assert script.planted("skips_samples_exact").fault


@pytest.mark.soak
def test_a_script_that_updates_its_parameters_by_hand(tmp_path: Path) -> None:
    text = (HERE / "train.py").read_text(encoding="utf-8")
    by_hand = (
        "[p.data.add_(p.grad, alpha=-0.05) for p in model.parameters()]",
        "[setattr(p, 'grad', None) for p in model.parameters()]",
    )
    for call, instead in zip(("optimizer.step()", "optimizer.zero_grad()"), by_hand, strict=True):
        assert call in text
        text = text.replace(call, instead)
    lines = [line for line in text.splitlines() if "torch.optim" not in line]
    (tmp_path / "train.py").write_text("\n".join(lines), encoding="utf-8")
    script = Verified("train.py", folder=tmp_path)
    assert script.planted("nothing_exact") == Answer(kind=EXACT)
    assert script.planted("half_the_labels_exact").fault
    assert missing(script, "optimizer", "fused") == ["optimizer"]


def missing(script: Verified, *made: str) -> Sequence[str]:
    """Returns which changes are not in effect, of pairs of names and values."""
    changes = dict(zip(made[::2], made[1::2], strict=True))
    return list(missing_of(changes, script.record(changes)))


@pytest.mark.soak
def test_where_batches_are_gathered_no_image_is_asked_for(script: Verified) -> None:
    assert missing(script, "images", "decoded", "loader", "gathered") == ["images"]


@pytest.mark.soak
def test_where_processes_race_only_what_leaves_the_arithmetic_alone_is_verified() -> None:
    script = Verified("racing.py")
    spinning = {"GOMP_SPINCOUNT": "100"}
    answer, _ = script.answer({}, Claim(kind=EXACT, keeps_arithmetic=True), env=spinning)
    assert script.reference.repeats.race
    assert (answer.kind, answer.fault) == (CLOSE, "")
    answer, _ = script.answer({"nothing_close": "on"}, Claim())
    assert (answer.fault, answer.is_unknown) == (RACES, True)
    answer, _ = script.answer({}, Claim(rounding=SINGLE, keeps_arithmetic=True, is_version=True))
    assert (answer.kind, answer.fault) == (CLOSE, "")


def test_a_script_that_fails_has_no_record(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import torch\nraise SystemExit('no data here')\n")
    recording = Recording(batches=8)
    assert "no data here" in record([sys.executable, "bad.py"], tmp_path, recording).failure
