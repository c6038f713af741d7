"""Every built-in loader through the one suite."""

from __future__ import annotations

from typing import Any

import pytest

from sweeper.core.config import LoaderConfig
from sweeper.core.loaders import BUILTIN
from sweeper.testing.loader_conformance import LoaderConformance

# Torch says so where there are fewer cores than workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

IN_WORKERS = {"num_workers": 2, "prefetch_factor": 3}
OPTIONS: dict[str, dict[str, Any]] = {
    "rows": {"kind": "rows"},
    "rows-2": {"kind": "rows", **IN_WORKERS},
    "rows-2-anew": {"kind": "rows", **IN_WORKERS, "persistent_workers": False},
    "workers": {"kind": "workers"},
    "workers-2": {"kind": "workers", **IN_WORKERS},
    "workers-2-anew": {"kind": "workers", **IN_WORKERS, "persistent_workers": False},
    "resident": {"kind": "resident"},
    "stream": {"kind": "stream"},
}


def test_no_kind_is_left_out():
    assert {options["kind"] for options in OPTIONS.values()} == set(BUILTIN)


class TestBuiltinLoaders(LoaderConformance):
    # Of processes that are started anew for each epoch, one kind tells.
    @pytest.fixture(
        params=[
            pytest.param(name, marks=pytest.mark.slow) if name == "workers-2-anew" else name
            for name in OPTIONS
        ]
    )
    def config(self, request: pytest.FixtureRequest) -> LoaderConfig:
        return LoaderConfig(**OPTIONS[request.param])


class TestLoaderThatGathersInTheStep(LoaderConformance):
    @pytest.fixture(params=[kind for kind, row in BUILTIN.items() if row.gathers_in_step])
    def config(self, request: pytest.FixtureRequest) -> LoaderConfig:
        return LoaderConfig(kind=request.param)

    @pytest.fixture
    def index_only(self) -> bool:
        return True
