"""The table of loaders: its strings resolve, nobody else decides by a kind's name, stored digests stay."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweeper.core.codec import decode
from sweeper.core.config import TrialConfig
from sweeper.core.loaders import BEST_FIRST, BUILTIN, KINDS, LoaderTraits, in_plain_script, traits
from sweeper.core.registry import resolve
from sweeper.errors import UserError
from sweeper.schema import SweepSpec

ROOT = Path(__file__).parents[2] / "sweeper"
OWNERS = ("core/loaders.py", "trainer/data/")
NOT_A_LOADER = {
    ("cli/check_pipeline.py", "resident"): "a key of `check --deep --json`",
    ("cli/list.py", "workers"): "a key of a cluster's jobs.json",
    ("launch/dask.py", "workers"): "a key of Dask's own",
    ("launch/cluster.py", "workers"): "a thread's name, and a key of jobs.json",
}
"""Where the same word means something else."""
NAMED = re.compile(rf"loader\.kind[=:]\s*[\"']?({'|'.join(BUILTIN)})\b")


def literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields the kinds that stand in a module's strings, docstrings aside, with their lines."""
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            if node.value in BUILTIN:
                yield node.lineno, node.value
            yield from ((node.lineno, found) for found in NAMED.findall(node.value))


def test_no_other_module_names_a_kind():
    paths = {str(path.relative_to(ROOT)): path for path in ROOT.rglob("*.py")}
    found = {
        (name, kind): line
        for name, path in paths.items()
        if not name.startswith(OWNERS)
        for line, kind in literals(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert {where: line for where, line in found.items() if where not in NOT_A_LOADER} == {}
    assert NOT_A_LOADER.keys() - found.keys() == set()


@pytest.mark.parametrize(
    "text",
    [
        *("kind == 'rows'", "kind in ('resident', other)", "{'stream': 1}", "f'`loader.kind: workers` {x}'"),
        *("lacks['loader.kind=resident']", "x = '{loader.kind: \"rows\"}'"),
    ],
)
def test_the_rule_finds_what_it_is_for(text):
    assert list(literals(ast.parse(text)))


def test_the_rule_passes_over_docstrings_and_other_words():
    text = '"""`loader.kind: rows`."""\nx = 1\n"""rows"""\ny = "streams", "loader.kind"'
    assert list(literals(ast.parse(text))) == []


def test_every_import_string_of_the_table_resolves():
    assert list(BUILTIN) == ["rows", "workers", "resident", "stream"]
    for kind, row in BUILTIN.items():
        assert KINDS.get(kind) is traits(kind) is row
        assert callable(resolve(row.implementation))
        assert callable(resolve(row.python))
        assert row.why
    assert set(BEST_FIRST) < set(BUILTIN)


def test_a_kind_that_is_gone_has_neutral_traits_and_cannot_be_run():
    gone = traits("gone")
    assert gone == LoaderTraits(implementation="", has_workers=True)
    for call in (KINDS.get, in_plain_script):
        with pytest.raises(UserError, match=r"must be one of rows, .* `module:name`, but got 'gone'"):
            call("gone")


# -- what is on disk --------------------------------------------------------------------------------------

ALL = {
    "loader.num_workers": 4,
    "loader.prefetch_factor": 8,
    "loader.pin_memory": True,
    "loader.persistent_workers": False,
    "loader.drop_last": False,
    "loader.buckets": 3,
}
SOME = {
    "loader.prefetch_factor": 8,
    "loader.persistent_workers": False,
    "batch_size": 512,
    "precision.amp": "bf16",
    "model.hidden": 32,
}
KEYS = {
    "rows": ("1d002a994a859dbe", "7eb52f7564def0bb", "f054684c6dccd095"),
    "workers": ("6fe753a93d4eaf96", "695ccbbf7a813000", "1ccf1566a04d55c7"),
    "resident": ("44136fa355b3678a", "227571085b8678ff", "7417b4d3ebd62c5c"),
    "stream": ("28977724f94c7067", "416251ca287e3813", "a0667230d35292ac"),
}
QUALITY_KEYS = ("84cffa066376aea4", "cbbc8c231d724e9f", "b6bc66706f5c6b5b")
"""They must not change: sweeps and machines are known by them."""


@pytest.mark.parametrize("kind", KEYS)
def test_digests_stay_as_they_are(kind):
    configs = [TrialConfig().replace({"loader.kind": kind, **more}) for more in ({}, ALL, SOME)]
    assert tuple(config.key() for config in configs) == KEYS[kind]
    assert tuple(config.quality_key() for config in configs) == QUALITY_KEYS


def test_a_scripts_value_counts_whatever_the_field_of_that_name_has_as_its_default():
    script, default = TrialConfig(args={"lr": 0.1}), TrialConfig().batch_size
    assert script.replace({"batch_size": default}).key() != script.key()


def test_a_scripts_digest_stays_as_it_is():
    config = TrialConfig(args={}).replace({"loader.kind": "workers", "loader.num_workers": 2, "mine": "x"})
    assert (config.key(), config.quality_key()) == ("4e8d128aa9e46f1e", "95276e4e86f94a64")


def test_a_config_without_later_fields_is_read():
    stored = {
        "batch_size": 64,
        "loader": {
            "kind": "workers",
            "num_workers": 2,
            "prefetch_factor": 2,
            "pin_memory": False,
            "persistent_workers": True,
            "drop_last": True,
            "buckets": 1,
        },
        "model": {"hidden": 32},
        "args": None,
    }
    want = TrialConfig().replace({"loader.kind": "workers", "loader.num_workers": 2, "model.hidden": 32})
    assert decode(TrialConfig, stored) == want


SPEC = {
    "name": "toy",
    "pipeline": "toy",
    "space": {"loader.kind": {"type": "categorical", "choices": ["stream", "gone"]}},
    "fix": {"batch_size": 8},
    "baseline": {"loader.kind": "gone"},
    "also_try": [{"loader.kind": "strem"}],
}


def test_a_specification_with_an_unknown_kind_is_refused_and_a_stored_one_is_read():
    with pytest.raises(UserError) as caught:
        SweepSpec.from_dict(SPEC)
    known = "`loader.kind` must be one of rows, workers, resident, stream, or an import string"
    known += " `module:name`, but got"
    assert [(each.path, each.text) for each in caught.value.mistakes] == [
        (("space", "loader.kind", "choices", 1), f"{known} 'gone'."),
        (("baseline", "loader.kind"), f"{known} 'gone'."),
        (
            ("also_try", 0, "loader.kind"),
            "`loader.kind` must be a built-in name or an import string `module:name`, but got 'strem'."
            " Did you mean `stream`?",
        ),
    ]
    spec = SweepSpec.from_dict(SPEC, is_stored=True)
    assert [config.loader.kind for config in spec.references()] == ["gone", "strem"]
    assert spec.config({"loader.kind": "gone"}).loader.kind == "gone"
