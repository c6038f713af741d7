"""The values of a space that have an effect on a configuration, and what each contributes."""

from __future__ import annotations

from sweeper.results.numbers.effects import IdleNames, idle_names
from sweeper.schema import SweepSpec

SPEC = SweepSpec.from_dict(
    {
        "name": "toy",
        "pipeline": "no.such.pipeline",
        "space": {
            "compile.mode": {"type": "categorical", "choices": ["eager", "default"]},
            "compile.dynamic": {"type": "categorical", "choices": ["auto", True, False]},
            "ddp.static_graph": {"type": "categorical", "choices": [True, False]},
        },
        "baseline": {"batch_size": 64},
    }
)


def test_answers_are_kept_apart_where_they_differ():
    known = IdleNames(SPEC)
    for mode in ("eager", "default"):
        config = SPEC.config({"compile.mode": mode, "compile.dynamic": True, "ddp.static_graph": False})
        found = known(config, config.canonical().flatten())
        assert found == idle_names(config, SPEC)
        assert ("compile.dynamic" in found) is (mode == "eager")
        assert "ddp.static_graph" in found
