"""Short names: what differs, in the order a reader looks for it."""

from __future__ import annotations

import pytest

from sweeper.core.config import TrialConfig
from sweeper.results.numbers.labels import label, run_name

ALL = (
    "batch_size",
    "loader.kind",
    "loader.num_workers",
    "loader.prefetch_factor",
    "loader.pin_memory",
    "precision.amp",
    "precision.tf32",
    "compile.mode",
    "model.hidden_size",
    "device.malloc",
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "bs2048 res fp32 h64"),
        ({"precision.amp": "bf16", "precision.tf32": True}, "bs2048 res bf16 tf32 h64"),
        ({"loader.kind": "workers"}, "bs2048 work w0 fp32 h64"),
        ({"loader.kind": "workers", "loader.num_workers": 4}, "bs2048 work w4 pf2 fp32 h64"),
        (
            {"loader.kind": "rows", "loader.num_workers": 4, "loader.pin_memory": True},
            "bs2048 rows w4 pf2 pin fp32 h64",
        ),
        ({"compile.mode": "max-autotune"}, "bs2048 res fp32 comp-max h64"),
        ({"compile.mode": "graph"}, "bs2048 res fp32 graph h64"),
        ({"loader.kind": "stream", "loader.num_workers": 4}, "bs2048 stream fp32 h64"),
        ({"device.malloc": "default"}, "bs2048 res fp32 plain-malloc h64"),
    ],
)
def test_a_label_says_what_is_in_effect(changes, expected):
    config = TrialConfig(batch_size=2048, model={"hidden_size": 64}).replace(changes)
    assert label(config, ALL) == expected


def test_only_what_varies_is_named_whatever_its_order():
    config = TrialConfig(batch_size=128, model={"kind": "gru", "dropout": 0.1})
    assert label(config, ("model.kind", "batch_size")) == "bs128 gru"
    assert label(config, ("model.dropout",)) == "dropout=0.1"
    assert label(config, ()) == ""


def test_a_switch_is_named_where_it_is_not_as_usual():
    config = TrialConfig(batch_size=1).replace(
        {"loader.kind": "workers", "loader.num_workers": 1, "loader.persistent_workers": False}
    )
    assert label(config, ("loader.persistent_workers",)) == "no-persistent"
    usual = config.replace({"loader.persistent_workers": True})
    assert label(usual, ("loader.persistent_workers",)) == ""


def test_two_different_trials_have_different_labels():
    config = TrialConfig(batch_size=64).replace({"loader.kind": "workers", "loader.num_workers": 2})
    varied = ("loader.kind", "loader.num_workers", "loader.pin_memory")
    pinned = config.replace({"loader.pin_memory": True})
    assert label(config, varied) != label(pinned, varied)


def test_run_names_begin_with_the_number():
    assert run_name(0, "baseline", TrialConfig(), ALL) == "000 baseline"
    assert run_name(7, "search", TrialConfig(batch_size=32), ("batch_size",)) == "007 bs32"
