"""Values that no trial could apply: they leave the space, and their configurations are not run as others."""

from __future__ import annotations

import dataclasses
from typing import Any

from parts.noop import synthetic
from replays import Bench, spec_of, surface

from sweeper.core.config import TrialConfig
from sweeper.core.record import TrialRecord
from sweeper.schema import SweepSpec
from sweeper.sweep.phases.dropped_values import RefusedValues

NO_BLOCK = {"activation_checkpointing": "false: no block of the model is repeated"}
CHOICES = {"activation_checkpointing": {"type": "categorical", "choices": [False, True]}}


def spec_with(**space: Any) -> SweepSpec:
    return spec_of(space={**spec_of().to_dict()["space"], **CHOICES, **space})


def left_after(spec: SweepSpec, *trials: tuple[bool, dict[str, str]]) -> dict[str, Any]:
    refused = RefusedValues(spec.space)
    for number, (value, notes) in enumerate(trials):
        config = spec.baseline_config().replace({"activation_checkpointing": value})
        outcome = dataclasses.replace(synthetic(1.0), effective=notes)
        refused.add(TrialRecord(number=number, uid="", stage="search", config=config, outcome=outcome))
    return {name: dict(each) for name, each in refused.choices_to_drop({}).items()}


def test_what_no_trial_could_apply_leaves() -> None:
    found = left_after(spec_with(), (False, {}), (True, NO_BLOCK))
    assert found == {"activation_checkpointing": {True: "no block of the model is repeated"}}


def test_what_a_trial_applied_stays() -> None:
    assert not left_after(spec_with(), (True, {}), (True, NO_BLOCK))


def test_of_models_of_several_sizes_one_may_apply_it() -> None:
    sizes = {"model.hidden_size": {"type": "categorical", "choices": [8, 16]}}
    assert not left_after(spec_with(**sizes), (True, NO_BLOCK))


def test_the_last_choice_stays() -> None:
    one = {"activation_checkpointing": {"type": "categorical", "choices": [True]}}
    assert not left_after(spec_with(**one), (True, NO_BLOCK))


def test_a_search_goes_on_without_it(bench: Bench) -> None:
    def refusing(config: TrialConfig) -> Any:
        notes = NO_BLOCK if config.activation_checkpointing else {}
        return dataclasses.replace(surface(config), effective=notes)

    bench.run(spec_with(), refusing)
    tried = [job.config.activation_checkpointing for job in bench.jobs("search")]
    assert tried.count(True) == 1
    line = "activation_checkpointing: true removed from the space (no effect: no block of the model is"
    assert any(each.startswith(line) for each in bench.watcher.lines)


def test_of_choices_that_are_all_refused_the_same_one_stays_in_any_order() -> None:
    spec = spec_with()
    both = [
        TrialRecord(
            number=number,
            uid="",
            stage="search",
            config=spec.baseline_config().replace({"activation_checkpointing": bool(number)}),
            outcome=dataclasses.replace(synthetic(1.0), effective={"activation_checkpointing": "other: why"}),
        )
        for number in (0, 1)
    ]
    found = []
    for order in (both, both[::-1]):
        refused = RefusedValues(spec.space)
        for record in order:
            refused.add(record)
        found.append(refused.choices_to_drop({}))
    assert found[0] == found[1] == {"activation_checkpointing": {False: "why"}}
