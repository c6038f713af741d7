"""A step of every shipped pipeline on `cuda:0` of a machine without a GPU: autocast, fused optimisers.

Unlike `meta` this has CUDA's autocast and its optimisers. The shim rests on torch's inner interfaces: it was
tried with 2.13, and no other release is asked to take it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pipelines_cases import CASES, name_of

HERE = Path(__file__).parents[1] / "fake_cuda"
VARIANTS = [("bf16-fused",), pytest.param(("fp32", "fp16-fused"), marks=pytest.mark.soak)]
NO_FAKE = "Could not run 'aten::empty_strided'"
"""Of the fused cell of a GRU torch has no fake, nor of a fused optimiser with its rate on the device."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.skipif(
        not torch.__version__.startswith("2.13."), reason="the shim was tried with torch 2.13"
    ),
    pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch without CUDA"),
]


@pytest.fixture(scope="module", params=VARIANTS, ids=" ".join)
def variants(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return tuple(request.param)


@pytest.fixture(scope="module")
def said(variants: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """What each case with each variant ended with: the loss's device, or an error."""
    shim, home = tmp_path_factory.mktemp("shim") / "shim.so", Path(torch.__file__).parent
    options = [
        "-std=c++20",
        "-fPIC",
        "-shared",
        f"-I{home}/include",
        f"-L{home}/lib",
        f"-Wl,-rpath,{home}/lib",
    ]
    command = ["g++", *options, str(HERE / "shim.cpp"), "-o", str(shim), "-lc10", "-ltorch_cpu"]
    subprocess.run(command, check=True, timeout=300)
    env = {**os.environ, "LD_PRELOAD": str(shim), "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    ran = subprocess.run(
        [sys.executable, str(HERE / "steps.py"), *variants],
        env=env,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    return {(line["case"], line["variant"]): line["said"] for line in lines}


def test_every_pipeline_takes_a_step_on_a_gpu_that_is_not_there(
    variants: tuple[str, ...], said: dict[tuple[str, str], str]
) -> None:
    cases = {(name_of(*case), variant): "cuda:0" for case in CASES for variant in variants}
    odd = {case: said[case] for case in cases if said[case] != "cuda:0"}
    gru = {case: text for case, text in odd.items() if "gru" in case[0] and NO_FAKE in text}
    assert odd == gru


def test_what_a_gpu_does_not_take_is_an_error(said: dict[tuple[str, str], str]) -> None:
    assert "DataDependentOutputException" in said["item", ""]
    assert "cuda:0 and cpu" in said["constant", ""]
