"""TrialConfig: names, copies, digests and rules."""

from __future__ import annotations

import math

import pytest

from sweeper.core.config import FIELDS, OptimizerConfig, TrialConfig, check_value, field_of
from sweeper.core.loaders import BUILTIN
from sweeper.errors import UserError


def test_every_field_is_reached_by_its_dotted_name():
    config = TrialConfig(model={"b": 2, "a": 1})
    flat = config.flatten()
    assert set(flat) == {*FIELDS, "model.a", "model.b"}
    assert flat["loader.kind"] == "resident"
    assert {name: flat[name] for name in FIELDS} == {name: f.default for name, f in FIELDS.items()}


def test_replace_sets_nested_and_open_names_and_leaves_the_rest():
    before = TrialConfig(model={"hidden": 8, "depth": 2})
    after = before.replace(
        {"batch_size": 128, "loader.num_workers": 3, "model.hidden": 16, "optimizer.lr": 1}
    )
    assert (after.batch_size, after.loader.num_workers, after.optimizer.lr) == (128, 3, 1.0)
    assert isinstance(after.optimizer.lr, float)
    assert after.model == {"hidden": 16, "depth": 2}
    assert before == TrialConfig(model={"hidden": 8, "depth": 2})
    assert TrialConfig().replace(after.flatten()) == after


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("batch_sise", 1, "`batch_sise` is not a field of a trial. Did you mean `batch_size`?"),
        ("loader", "rows", "`loader` is not a field of a trial."),
        ("model", 1, "`model` is not a field of a trial."),
        ("batch_size", 6.5, "`batch_size` must be an integer, but got 6.5."),
        ("batch_size", True, "`batch_size` must be an integer, but got True."),
        ("precision.tf32", 1, "`precision.tf32` must be one of default, true, false, but got 1."),
        ("optimizer.lr", "fast", "`optimizer.lr` must be a number, but got 'fast'."),
        ("loader.kind", "streams", "`module:name`, but got 'streams'. Did you mean `stream`?"),
        ("loader.kind", 1, f"{list(BUILTIN)[-1]}, or an import string `module:name`, but got 1."),
        (
            "precision.amp",
            "bf61",
            "must be one of fp32, bf16, fp16, fp8, but got 'bf61'. Did you mean `bf16`?",
        ),
    ],
)
def test_a_wrong_name_or_value_is_said(name, value, message):
    with pytest.raises(UserError) as caught:
        check_value(name, value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"batch_size": 0}, "`batch_size >= 1` must hold, but got 0."),
        ({"accumulate_steps": 0}, "`accumulate_steps >= 1` must hold"),
        ({"loader.num_workers": -1}, "`loader.num_workers >= 0` must hold"),
        ({"loader.prefetch_factor": 0}, "`loader.prefetch_factor >= 1` must hold"),
        ({"loader.buckets": 0}, "`loader.buckets >= 1` must hold"),
        ({"compile.mode": "graphs"}, "Did you mean `graph`?"),
        ({"device.malloc": "keep"}, "must be one of retain, default, but got 'keep'"),
        ({"optimizer.lr": 0.0}, "`optimizer.lr > 0` must hold"),
        ({"optimizer.lr": math.nan}, "`optimizer.lr > 0` must hold"),
        ({"optimizer.clip_norm": -1.0}, "`optimizer.clip_norm >= 0` must hold"),
        ({"device.memory_fraction": 1.5}, "`0 <= device.memory_fraction <= 1` must hold"),
        ({"device.count": 0}, "`device.count >= 1` must hold, but got 0."),
    ],
)
def test_a_broken_rule_is_named_with_the_value(changes, rule):
    with pytest.raises(UserError) as caught:
        TrialConfig().replace(changes)
    assert rule in str(caught.value)


def test_open_names_take_any_value_and_have_no_field():
    assert field_of("model.anything") is None
    assert check_value("data.path", "x") == "x"


WITHOUT_WORKERS = {
    "loader.num_workers": 4,
    "loader.prefetch_factor": 8,
    "loader.pin_memory": True,
    "loader.persistent_workers": False,
}
INERT = {
    "resident": WITHOUT_WORKERS,
    "stream": WITHOUT_WORKERS,
    "workers": {"loader.prefetch_factor": 8, "loader.persistent_workers": False},
}


@pytest.mark.parametrize("kind", INERT)
def test_fields_without_effect_do_not_make_another_trial(kind):
    plain = TrialConfig().replace({"loader.kind": kind})
    noisy = plain.replace(INERT[kind])
    assert noisy != plain
    assert noisy.canonical() == plain.canonical()
    assert noisy.key() == plain.key()
    assert plain.replace({"loader.kind": "workers", "loader.num_workers": 1}).key() != plain.key()


@pytest.mark.parametrize("kind", INERT)
@pytest.mark.parametrize("change", [{"loader.drop_last": False}, {"loader.buckets": 3}])
def test_fields_with_an_effect_make_another_trial_of_every_kind(kind, change):
    plain = TrialConfig().replace({"loader.kind": kind})
    noisy = plain.replace({**INERT[kind], **change})
    assert noisy.canonical().loader.kind == kind
    assert noisy.canonical() == plain.replace(change).canonical() != plain.canonical()
    assert noisy.key() != plain.key()


def test_kinds_are_trials_of_their_own():
    configs = [TrialConfig().replace({"loader.kind": kind}) for kind in FIELDS["loader.kind"].choices]
    assert len({config.key() for config in configs}) == len(configs) == len(BUILTIN)


def test_prefetch_counts_where_there_are_workers():
    config = TrialConfig().replace({"loader.kind": "workers", "loader.num_workers": 2})
    assert config.key() != config.replace({"loader.prefetch_factor": 4}).key()


def test_lr_batch_size_counts_only_with_a_rule():
    config = TrialConfig()
    assert config.key() == config.replace({"optimizer.lr_batch_size": 32}).key()
    ruled = config.replace({"optimizer.lr_rule": "sqrt"})
    assert ruled.key() != ruled.replace({"optimizer.lr_batch_size": 32}).key()


OTHER = {
    "loader.kind": "rows",
    "loader.drop_last": False,
    "device.malloc": "default",
    "device.cpu_threads": 2,
    "device.memory_fraction": 0.5,
    "compile.cudnn_benchmark": True,
}
NUMERIC = {
    "batch_size": 128,
    "loader.buckets": 2,
    "accumulate_steps": 2,
    "seed": 1,
    "precision.amp": "bf16",
    "precision.tf32": True,
    "compile.mode": "default",
    "optimizer.name": "sgd",
    "optimizer.lr": 0.1,
    "optimizer.warmup_steps": 5,
    "optimizer.clip_norm": 1.0,
    "memory_format": "channels_last",
    "model.hidden": 4,
    "data.length": 3,
}


@pytest.mark.parametrize("name", OTHER)
def test_the_loss_does_not_depend_on(name):
    changed = TrialConfig().replace({name: OTHER[name]})
    assert changed.quality_key() == TrialConfig().quality_key()
    assert changed.key() != TrialConfig().key()


@pytest.mark.parametrize("name", NUMERIC)
def test_the_loss_depends_on(name):
    changed = TrialConfig().replace({name: NUMERIC[name]})
    assert changed.quality_key() != TrialConfig().quality_key()
    assert changed.key() != TrialConfig().key()


def test_a_graph_has_the_loss_of_eager_steps():
    eager, graph, stream = (
        TrialConfig().replace(change)
        for change in ({}, {"compile.mode": "graph"}, {"compile.mode": "graph", "loader.kind": "stream"})
    )
    assert eager.quality_key() == graph.quality_key() == stream.quality_key()
    assert len({eager.key(), graph.key(), stream.key()}) == 3
    assert graph.quality_key() != graph.replace({"precision.amp": "bf16"}).quality_key()
    assert graph.quality_key() != graph.replace({"compile.mode": "reduce-overhead"}).quality_key()


def test_what_other_devices_take_is_as_if_accumulated():
    config = TrialConfig().replace({"device.count": 3, "accumulate_steps": 2, "batch_size": 10})
    alone = config.replace({"device.count": 1, "accumulate_steps": 6})
    assert config.on_one_device() == alone
    assert config.global_batch == alone.global_batch == 60
    assert config.quality_key() == alone.quality_key()
    assert config.quality_key() != config.replace({"device.count": 2}).quality_key()
    assert config.key() != alone.key()


def test_keys_do_not_depend_on_the_order_of_open_names():
    first, second = TrialConfig(model={"a": 1, "b": 2}), TrialConfig(model={"b": 2, "a": 1})
    assert first.key() == second.key()
    assert first.work_key() == second.work_key() != TrialConfig().work_key()
    assert first.replace({"batch_size": 1}).work_key() == first.work_key()


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("sqrt", 2.0), ("linear", 4.0)])
def test_the_rate_follows_the_global_batch(rule, factor):
    config = TrialConfig(
        batch_size=128, accumulate_steps=2, optimizer=OptimizerConfig(lr=0.01, lr_rule=rule, lr_batch_size=64)
    )
    assert config.optimizer.lr_at(config.global_batch) == pytest.approx(0.01 * factor)
    assert OptimizerConfig(lr=0.01, lr_rule=rule).lr_at(999) == 0.01
