"""How two records compare: equal in every bit, equal but for rounding, or different."""

from __future__ import annotations

import math
from collections.abc import Sequence

from records import LOSSES, run

from sweeper.race.record import Record, exact_difference, extent_of, real_difference

SEEDS = [run([each * factor for each in LOSSES], batch="b") for factor in (0.97, 1.05)]


def test_equal_is_equal_in_every_bit() -> None:
    assert exact_difference(run(LOSSES), run(LOSSES)) == ""
    nearly = [*LOSSES[:20], LOSSES[20] * (1 + 1e-15), *LOSSES[21:]]
    assert exact_difference(run(nearly), run(LOSSES)) == "its losses differ after 20 steps"


def test_rounding_is_close() -> None:
    assert real_difference(run([each * (1 + 1e-6) for each in LOSSES]), run(LOSSES), SEEDS) == ""


def test_a_first_loss_that_differs_is_no_rounding() -> None:
    assert "its losses differ in step 1" in real_difference(
        run([each * 1.01 for each in LOSSES]), run(LOSSES), SEEDS
    )


def test_later_losses_stay_within_those_of_other_seeds() -> None:
    near = [each * (1 + 0.001 * max(0, number - 5)) for number, each in enumerate(LOSSES)]
    far = [each * (1 + 0.01 * max(0, number - 5)) for number, each in enumerate(LOSSES)]
    assert real_difference(run(near), run(LOSSES), SEEDS) == ""
    assert "farther from the script's" in real_difference(run(far), run(LOSSES), SEEDS)


def test_how_far_curves_are_is_the_mean_over_runs_with_the_same_seeds() -> None:
    def drifting(losses: Sequence[float]) -> Record:
        return run([each * (1 + 0.0035 * max(0, number - 5)) for number, each in enumerate(losses)])

    other = [each * 0.97 for each in LOSSES]
    assert "farther from the script's" in real_difference(drifting(LOSSES), run(LOSSES), SEEDS)
    assert real_difference(drifting(LOSSES), run(LOSSES), SEEDS, pairs=[(run(other), run(other))]) == ""
    as_far = [(drifting(other), run(other))]
    assert "farther from the script's" in real_difference(drifting(LOSSES), run(LOSSES), SEEDS, pairs=as_far)
    diverged = [*other[:20], math.nan, *other[21:]]
    assert real_difference(run(LOSSES), run(LOSSES), SEEDS, pairs=[(run(diverged), run(other))]) != ""
    # Where the script itself diverges, nothing is known.
    assert real_difference(run(LOSSES), run(LOSSES), SEEDS, pairs=[(run(other), run(diverged))]) == ""
    short = run(other[:20])
    assert real_difference(run(LOSSES), run(LOSSES), SEEDS, pairs=[(short, short)]) == ""


def test_a_process_is_compared_with_itself_under_other_seeds() -> None:
    """Also where another one, which only waits for it, has no record in one of the runs."""

    def with_parent(found: Record) -> Record:
        return Record(events={**found.events, "parent": [{"eval": "Net"}]})

    far = [each * (1 + 0.01 * max(0, number - 5)) for number, each in enumerate(LOSSES)]
    seeds = [with_parent(each) for each in SEEDS]
    assert real_difference(run(LOSSES), with_parent(run(LOSSES)), seeds) == ""
    assert "farther from the script's" in real_difference(run(far), with_parent(run(LOSSES)), seeds)


def test_other_batches_or_draws_are_not_close() -> None:
    assert real_difference(run(LOSSES, batch="x"), run(LOSSES), SEEDS) == "its batches differ after 0 steps"
    assert "random numbers" in real_difference(run(LOSSES, random="x"), run(LOSSES), SEEDS)


def test_fewer_steps_are_not_equal() -> None:
    assert exact_difference(run(LOSSES[:30]), run(LOSSES)) != ""


def test_what_is_covered_is_said() -> None:
    assert extent_of(run(LOSSES)) == "40 steps"
    assert extent_of(run(LOSSES), run(LOSSES[:30])) == "30 steps"


def test_a_process_that_waited_for_those_that_train_is_none_of_them() -> None:
    steps = [{"step": number} for number in range(20)]
    trained = Record(events={"1": steps, "2": steps})
    assert not exact_difference(trained, Record(events={**trained.events, "parent": [{"eval": 1}]}))
    assert (
        exact_difference(trained, Record(events={**trained.events, "3": steps}))
        == "different processes train"
    )


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
    assert real_difference(two_parameters((2e-9, 0.05)), baseline, [baseline]) == ""
    assert "updates differ" in real_difference(
        two_parameters((0.5, 0.05)), two_parameters((0.5, 0.1)), [baseline]
    )
    assert "gradients differ" in real_difference(two_parameters((0.5, 0.1)), baseline, [baseline])


def test_a_parameter_that_a_later_step_leaves_alone_is_seen() -> None:
    baseline, found = two_parameters((0.5, 0.1)), two_parameters((0.5, 0.1))
    steps = [each for each in found.events["record-0"] if "step" in each]
    steps[8]["moved"] = [True, False]  # type: ignore[index]
    assert real_difference(found, baseline, [baseline]) == "its updates differ after 8 steps"
