"""What the tests themselves run on."""

import os

import pytest


@pytest.mark.skipif(os.environ.get("CI") != "true", reason="only where CI runs, which has no GPU")
def test_ci_has_a_cpu_build_of_torch():
    import torch

    assert torch.version.cuda is None, "several GB of CUDA packages were installed for nothing"
