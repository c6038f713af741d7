"""Proofs: what trains otherwise is refused, what trains the same is not."""

from __future__ import annotations

import dataclasses
import functools
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from sweeper.interventions import known
from sweeper.interventions.change import CLOSE, DRAWS, EXACT, SINGLE
from sweeper.race.record import HOGWILD, Record, close, crossed, equal
from sweeper.tuning.changes import ChangeValue
from sweeper.tuning.proofs import Proofs

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
PLANTED = HERE / "planted.py"
SCRIPTS = {"WRONG": ("train.py",), "WRONG_CAREFUL": ("careful.py",), "WRONG_WORKERS": ("careful.py", "2")}
LISTS = runpy.run_path(str(PLANTED))


@functools.cache
def proofs_of(*command: str) -> Proofs:
    return Proofs([sys.executable, *command], HERE, {}, 40, on_gpu=False, file=PLANTED)


@pytest.fixture
def proofs() -> Proofs:
    return proofs_of("train.py")


@functools.cache
def planted() -> dict[str, ChangeValue]:
    found = {name: each for name, each in known(str(PLANTED)).items() if each.why == "planted"}
    return {
        name: ChangeValue(name=name, value=each.choices[0], kind=each.kind, why=each.why)
        for name, each in found.items()
    }


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
def test_other_draws_are_no_excuse_for_less_work(proofs: Proofs, name: str) -> None:
    change = dataclasses.replace(planted()[f"{name}_close"], kind=DRAWS, rounding=HOGWILD)
    (found,) = proofs.prove([change], lambda _: None)
    assert found.refused


@pytest.mark.soak
def test_more_workers_are_the_same_but_for_their_draws(tmp_path: Path) -> None:
    # Its rows are cropped and turned at random, by torch's own generator.
    text = (HERE / "careful.py").read_text(encoding="utf-8")
    assert "self.own.random()" in text
    (tmp_path / "train.py").write_text(text.replace("self.own.random()", "torch.rand(())"))
    proofs = Proofs([sys.executable, "train.py"], tmp_path, {}, 40, on_gpu=False, file=PLANTED)
    change = ChangeValue(name="augmentation_workers", value="cores", kind=DRAWS, why="", rounding=HOGWILD)
    (found,) = proofs.prove([change], lambda _: None)
    assert found.refused == ""
    assert found.proof.startswith("the same but for its draws, with differences as between seeds, over ")
    assert proofs.stack([change]) == (DRAWS, "")
    as_exact = dataclasses.replace(change, kind=EXACT, rounding=SINGLE)
    assert proofs.prove([as_exact], lambda _: None)[0].refused
    wrong = planted()["drops_last_close"]
    assert proofs.stack([change, wrong])[1]


def test_a_proof_crosses_epochs_and_evaluations(proofs: Proofs) -> None:
    assert not proofs.unproved
    assert proofs.covers == "83 steps, the ends of 2 epochs, 2 evaluations"


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
    (found,) = proofs_of(*SCRIPTS[which]).prove([planted()[name]], lambda _: None)
    assert found.refused
    assert not found.proof


@pytest.mark.soak
def test_half_precision_is_not_exact(proofs: Proofs) -> None:
    (found,) = proofs.prove([planted()["half_precision_exact"]], lambda _: None)
    assert found.refused


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["exact", pytest.param("close", marks=pytest.mark.soak)])
def test_harmless_changes_are_not(proofs: Proofs, kind: str) -> None:
    asked = [planted()[f"{name}_{kind}"] for name in names("HARMLESS")]
    for each in proofs.prove(asked, lambda _: None):
        assert not each.refused
        assert "83 steps" in each.proof


def test_where_one_of_several_fails_the_others_are_proved(proofs: Proofs) -> None:
    among = planted()
    found = proofs.prove([among["nothing_exact"], among["clips_exact"]], lambda _: None)
    assert [bool(each.refused) for each in found] == [False, True]
    assert "gradients" in found[1].refused or "updates" in found[1].refused


@pytest.mark.soak
@pytest.mark.parametrize(("noise", "is_proved"), [("1e-6", True), ("0.3", False)])
def test_a_script_that_does_not_repeat_itself(tmp_path: Path, noise: str, is_proved: bool) -> None:
    text = (HERE / "train.py").read_text(encoding="utf-8")
    loss = "nn.functional.cross_entropy(model(batch), labels)"
    text = text.replace(f"{loss}.backward()", f"((1 + {noise} * system.random()) * {loss}).backward()")
    # The operating system's generator, which no seed reaches.
    head = "import random\nsystem = random.SystemRandom()\n"
    (tmp_path / "train.py").write_text(head + text, encoding="utf-8")
    found = Proofs([sys.executable, "train.py"], tmp_path, {}, 40, on_gpu=False, file=PLANTED)
    assert bool(found.unproved) is not is_proved
    if is_proved:
        among = [planted()["nothing_exact"], planted()["skips_samples_exact"]]
        harmless, wrong = found.prove(among, lambda _: None)
        assert "as two runs of the unchanged script are" in harmless.proof
        assert wrong.refused


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
    found = Proofs([sys.executable, "train.py"], tmp_path, {}, 40, on_gpu=False, file=PLANTED)
    assert not found.unproved
    among = [planted()[name] for name in ("nothing_exact", "half_the_labels_exact")]
    harmless, wrong = found.prove(among, lambda _: None)
    assert "equal in every bit over 7" in harmless.proof
    assert wrong.refused
    (fused,) = found.prove([ChangeValue(name="optimizer", value="fused", kind="close")], lambda _: None)
    assert fused.refused == "the training does not use what it changes"


@pytest.mark.soak
def test_where_batches_are_gathered_no_picture_is_asked_for(proofs: Proofs) -> None:
    among = [
        ChangeValue(name=n, value=v, kind="exact") for n, v in (("images", "decoded"), ("loader", "gathered"))
    ]
    pictures, loader = proofs.prove(among, lambda _: None)
    assert pictures.refused == "the training does not use what it changes"
    assert loader.proof


def test_a_process_that_waited_for_those_that_train_is_none_of_them() -> None:
    steps = [{"step": number} for number in range(20)]
    trained = Record(events={"1": steps, "2": steps})
    assert not equal(trained, Record(events={**trained.events, "parent": [{"eval": 1}]}))
    assert equal(trained, Record(events={**trained.events, "3": steps})) == "different processes train"


@pytest.mark.soak
def test_where_processes_race_only_what_leaves_the_arithmetic_alone_is_proved() -> None:
    found = Proofs([sys.executable, "racing.py"], HERE, {}, 40, on_gpu=False, file=PLANTED)
    assert not found.unproved
    assert "race" in found.races
    spinning = ChangeValue(
        name="spin_wait", value="short", kind="exact", why="", env={"GOMP_SPINCOUNT": "100"}
    )
    harmless, of_code = found.prove([spinning, planted()["nothing_close"]], lambda _: None)
    assert "as between its repeats" in harmless.proof
    assert of_code.refused == found.races
    assert not found.stack([harmless])[1]
    again = [sys.executable, "racing.py"]
    assert found.other(again, HERE, SINGLE, env={}) == (CLOSE, "")


def test_a_script_that_fails_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import torch\nraise SystemExit('no data here')\n")
    found = Proofs([sys.executable, "bad.py"], tmp_path, {}, 40, on_gpu=False)
    assert "no data here" in found.unproved
    (change,) = found.prove([planted()["nothing_exact"]], lambda _: None)
    assert change.refused == found.unproved


@pytest.mark.parametrize(
    ("faulty", "num_runs"), [("a", 3), ("b", 3), ("e", 3), ("be", 5)], ids=["first", "second", "last", "two"]
)
def test_the_faulty_one_of_several_is_looked_for_by_halving(
    monkeypatch: pytest.MonkeyPatch, faulty: str, num_runs: int
) -> None:
    runs: list[str] = []

    def run_with(_: Proofs, groups: list[list[ChangeValue]]) -> list[Record]:
        runs.extend("".join(change.name for change in group) for group in groups)
        return [Record(events={}, failure="") for _ in groups]

    def fault_of(*_: object) -> str:
        return "differs" if set(faulty) & set(runs[-1]) else ""

    monkeypatch.setattr(Proofs, "_with", run_with)
    monkeypatch.setattr(Proofs, "_fault", fault_of)
    proofs = Proofs.__new__(Proofs)
    proofs.races, proofs.covers, proofs._repeats = "", "9 steps", True
    changes = [ChangeValue(name=name, value="on", kind=CLOSE) for name in "abcde"]
    found = {change.name: change.refused for change in proofs._proved_but_one(changes, "differs")}
    assert {name for name, refused in found.items() if refused} == set(faulty)
    assert len(found) == 5
    assert len(runs) == num_runs


# -- the judge alone --------------------------------------------------------------------------------


def run(losses: list[float], *, batch: str = "a", random: str = "r", end: str = "done") -> Record:
    events: list[dict[str, object]] = []
    for number, loss in enumerate(losses, start=1):
        events += [
            {"batch": f"{batch}{number}"},
            {"loss": [loss.hex()]},
            {"gradients": 1, "norm": loss, **({"sums": [[loss, loss]]} if number <= 4 else {})},
            {"step": number, "samples": 8, "rates": [0.1], "random": random},
        ]
    events.append({"end": end, "parameters": str(losses[-1]), "moved": [True]})
    return Record(events={"record-0": events})


LOSSES = [1 / (1 + 0.1 * number) for number in range(40)]
SEEDS = [run([each * factor for each in LOSSES], batch="b") for factor in (0.97, 1.05)]


def test_equal_is_equal_in_every_bit() -> None:
    assert equal(run(LOSSES), run(LOSSES)) == ""
    nearly = [*LOSSES[:20], LOSSES[20] * (1 + 1e-15), *LOSSES[21:]]
    assert equal(run(nearly), run(LOSSES)) == "its losses differ after 20 steps"


def test_rounding_is_close() -> None:
    assert close(run([each * (1 + 1e-6) for each in LOSSES]), run(LOSSES), SEEDS) == ""


def test_a_first_loss_that_differs_is_no_rounding() -> None:
    assert "its losses differ in step 1" in close(run([each * 1.01 for each in LOSSES]), run(LOSSES), SEEDS)


def test_later_losses_stay_within_those_of_other_seeds() -> None:
    near = [each * (1 + 0.001 * max(0, number - 5)) for number, each in enumerate(LOSSES)]
    far = [each * (1 + 0.01 * max(0, number - 5)) for number, each in enumerate(LOSSES)]
    assert close(run(near), run(LOSSES), SEEDS) == ""
    assert "farther from the script's" in close(run(far), run(LOSSES), SEEDS)


def test_a_process_is_compared_with_itself_under_other_seeds() -> None:
    """Also where another one, which only waits for it, has no record in one of the runs."""

    def with_parent(found: Record) -> Record:
        return Record(events={**found.events, "parent": [{"eval": "Net"}]})

    far = [each * (1 + 0.01 * max(0, number - 5)) for number, each in enumerate(LOSSES)]
    seeds = [with_parent(each) for each in SEEDS]
    assert close(run(LOSSES), with_parent(run(LOSSES)), seeds) == ""
    assert "farther from the script's" in close(run(far), with_parent(run(LOSSES)), seeds)


def test_other_batches_or_draws_are_not_close() -> None:
    assert close(run(LOSSES, batch="x"), run(LOSSES), SEEDS) == "its batches differ after 0 steps"
    assert "random numbers" in close(run(LOSSES, random="x"), run(LOSSES), SEEDS)


def test_fewer_steps_are_not_equal() -> None:
    assert equal(run(LOSSES[:30]), run(LOSSES)) != ""


def test_what_is_covered_is_said() -> None:
    assert crossed(run(LOSSES)) == "40 steps"
    assert crossed(run(LOSSES), run(LOSSES[:30])) == "30 steps"


def test_a_script_that_starts_slowly_gets_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def recorded(*asked: object) -> Record:
        limits.append(asked[-1])
        return Record(failure="seen enough")

    monkeypatch.setattr("sweeper.tuning.proofs.record", recorded)
    Proofs(["python", "train.py"], HERE, {}, 1.0, on_gpu=False, start_seconds=100.0)
    assert set(limits) == {260.0}


def test_a_change_that_takes_long_to_make_gets_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def recorded(*asked: Any) -> Record:
        limits.append((asked[2].get("SWEEPER_CHANGES", ""), asked[-1]))
        return run(LOSSES)

    monkeypatch.setattr("sweeper.tuning.proofs.record", recorded)
    proofs = Proofs(["python", "train.py"], HERE, {}, 1.0, on_gpu=False)
    proofs.prove([ChangeValue(name="compile", value="model", kind=CLOSE)], lambda _: None)
    usual = {limit for words, limit in limits if not words}
    (longer,) = {limit for words, limit in limits if words}
    assert usual == {longer - 240.0}


def two_parameters(second: tuple[float, float]) -> Record:
    """A run whose second parameter has the gradient and update of these norms in its steps."""
    gradient, update = second
    gradients, updates = [[1.0, 0.5], [gradient, gradient / 2]], [[0.1, 0.05], [update, -update]]
    events: list[dict[str, object]] = []
    for number in range(1, 12):
        events += [
            {"batch": f"a{number}"},
            {"loss": [LOSSES[number].hex()]},
            {"gradients": 2, "norm": 1.0, "norms": [1.0, gradient], "sums": gradients},
            {"step": number, "samples": 8, "rates": [0.1], "moved": [True] * 2, "sums": updates},
        ]
    events.append({"end": "done", "parameters": str(second), "moved": [True, True]})
    return Record(events={"record-0": events})


def test_whole_steps_of_gradients_that_are_rounding_alone_may_differ() -> None:
    baseline = two_parameters((1e-9, 0.1))
    assert close(two_parameters((2e-9, 0.05)), baseline, [baseline]) == ""
    assert "updates differ" in close(two_parameters((0.5, 0.05)), two_parameters((0.5, 0.1)), [baseline])
    assert "gradients differ" in close(two_parameters((0.5, 0.1)), baseline, [baseline])


def test_a_parameter_that_a_later_step_leaves_alone_is_seen() -> None:
    baseline, found = two_parameters((0.5, 0.1)), two_parameters((0.5, 0.1))
    steps = [each for each in found.events["record-0"] if "step" in each]
    steps[8]["moved"] = [True, False]  # type: ignore[index]
    assert close(found, baseline, [baseline]) == "its updates differ after 8 steps"
