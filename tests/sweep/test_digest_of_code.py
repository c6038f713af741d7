"""A pipeline's digest: what 0.1.0 stored still holds, wherever the pipeline's files lie."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sweeper.sweep.fingerprint import digest_of_code

REPOSITORY = Path(__file__).parents[2]

OF_0_1_0 = {
    "pipelines.behaviour": "c9f0ed7bd0ca2951",
    "pipelines.kuairand": "3f8354bbaac75b32",
    "pipelines.sequence": "f33ff6d73a5167a9",
    "pipelines.sign_language": "89b67ba9332dfb7a",
    "pipelines.stocks": "c449a8738ecb5d09",
    "pipelines.tabular": "ab5dbb9ada0a8aca",
}
"""As 0.1.0 stored them, with Python 3.11."""
of_3_11 = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="syntax trees differ between versions of Python"
)


@of_3_11
@pytest.mark.parametrize("pipeline", OF_0_1_0)
def test_a_shipped_pipeline_has_the_digest_that_0_1_0_stored(pipeline, monkeypatch):
    """Change a recorded digest only with a pipeline's code: stored sweeps of it do not go on then."""
    monkeypatch.chdir(REPOSITORY)
    assert digest_of_code(pipeline) == OF_0_1_0[pipeline]
