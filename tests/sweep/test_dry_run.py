"""A dry run: what a sweep would do is what it then does; nothing is left, and what is there is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from parts.replay import ReplayLauncher
from replays import spec_of, surface

from sweeper.errors import UserError
from sweeper.sweep.dry_run import FIRST, dry_run


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch) -> Path:
    """Where temporary folders are made: to see that they are gone."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def plan_of(bench, spec=None, *, new=False, **about):
    return dry_run(
        bench.home, spec or spec_of(), new=new, launch=lambda folder: ReplayLauncher(surface, **about)
    )


def files(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def test_it_names_what_the_sweep_then_does(bench, temporary):
    """Random search is not swayed by what it measures: it asks for exactly these."""
    spec = spec_of(search={"sampler": "random", "trials": 10})
    plan = plan_of(bench, spec)
    assert not bench.home.exists()
    assert list(temporary.iterdir()) == []
    assert (plan.existing, plan.removed, plan.device) == ("", (), "none")
    assert len(plan.first) == FIRST
    bench.run(spec)
    assert [job.config for job in bench.jobs("search")][:FIRST] == list(plan.first)
    asked = [job.config for stage in ("baseline", "reference") for job in bench.jobs(stage)]
    assert asked == list(plan.references)


def test_the_search_begins_where_an_earlier_sweep_ended(bench):
    bench.run(spec_of(name="first"))
    (again,) = plan_of(bench, spec_of(name="second", search={"trials": 1})).first
    bench.run(spec_of(name="second"))
    assert bench.jobs("search")[0].config == again
    assert "the best of `first`" in bench.jobs("search")[0].origin
    with pytest.raises(UserError, match="no sweep"):
        plan_of(bench, spec_of(name="third", search={"warm_start": "no-such"}))


def test_what_the_device_and_the_loss_leave_out(bench):
    spec = spec_of(measure={"quality_samples": 5_000})
    plan = plan_of(bench, spec, usable_cpus=2, lacks={"precision.amp=bf16": "it is old"})
    assert plan.removed == (
        "precision.amp: bf16 removed from the space (it is old).",
        "loader.num_workers: at most 2 here (2 usable cores).",
        "batch_size: at most 100 here, so that 5,000 samples (measure.quality_samples) make 50 steps.",
    )
    # 37 batches; resident, or 0 to 2 workers.
    assert plan.size == 37 * (1 + 3)
    assert {config.precision.amp for config in plan.first} == {"fp32"}


def test_a_small_space_is_listed_and_an_endless_one_is_not(bench):
    space = {"batch_size": {"type": "int", "low": 64, "high": 66}}
    plan = plan_of(bench, spec_of(space=space))
    assert plan.size == 3
    # The baseline takes one of them.
    baseline = spec_of(space=space, baseline={"batch_size": 64}, also_try=[])
    assert len(plan_of(bench, baseline).first) == 2
    endless = {**space, "optimizer.lr": {"type": "float", "low": 0.1, "high": 0.2}}
    plan = plan_of(bench, spec_of(space=endless))
    assert (plan.size, len(plan.first)) == (None, 8)


def test_how_long_it_takes(bench):
    """Two references, eight trials and three rounds of three processes, a second each beside the windows."""
    measure = {"window_seconds": 10, "repeats": 2, "reference_cap_seconds": 15}
    plan = plan_of(bench, spec_of(measure=measure))
    assert plan.minutes == pytest.approx((2 * (1 + 15) + 8 * (1 + 20) + 9 * (1 + 10)) / 60)
    assert plan.at_most_minutes is None
    plan = plan_of(bench, spec_of(measure=measure, search={"minutes": 2}))
    assert (plan.minutes, plan.at_most_minutes) == (2, 2)
    # The baseline's loss over three seeds, for a sixtieth of the time each.
    limited = {"measure": {**measure, "quality_samples": "auto"}, "search": {"minutes": 10}}
    longer = plan_of(bench, spec_of(**limited))
    without = plan_of(bench, spec_of(**{**limited, "measure": {**measure, "quality_samples": 0}}))
    assert longer.minutes - without.minutes == pytest.approx(3 * 10 / 60)


class CutError(Exception):
    """The supervisor is gone."""


def test_an_existing_sweep_is_named_and_left_alone(bench):
    def cut(config):
        if config.loader.kind != "rows" and len(bench.jobs("search")) > 3:
            raise CutError
        return surface(config)

    with pytest.raises(CutError):
        bench.run(answer=cut)
    before = files(bench.home)
    assert plan_of(bench).existing == "`toy` has 3 of 8 trials; the same command continues it."
    assert plan_of(bench, new=True).existing == ""
    changed = spec_of(measure={"repeats": 2})
    assert plan_of(bench, changed).existing == (
        "`toy` is unfinished and was started with other settings (measure.repeats: 3 -> 2); "
        "add --new to start another sweep."
    )
    assert files(bench.home) == before
    bench.run()
    before = files(bench.home)
    assert plan_of(bench).existing == "`toy` finished after 8 trials; the same command shows it again."
    assert plan_of(bench, changed).existing == ""
    assert files(bench.home) == before


def test_what_is_wrong_is_said_as_a_run_says_it(bench, temporary):
    with pytest.raises(UserError, match=r"`execution.gpus` needs a GPU"):
        plan_of(bench, spec_of(execution={"gpus": 2}))
    assert list(temporary.iterdir()) == []
    Path("toy_pipeline.py").unlink()
    with pytest.raises(UserError, match="`pipeline` must name a module"):
        plan_of(bench)
