"""What a rehearsal has instead of a GPU: the tests' stand-ins for CUDA and for NVML, in every process.

`site/sitecustomize.py` gives the one for CUDA to every interpreter that imports torch. Of a CUDA build of
torch, the C layer still checks arguments.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

SITE = Path(__file__).with_name("site")
TESTS = Path(__file__).parents[2] / "tests"
REHEARSAL_VARIABLE = "SWEEPER_REHEARSAL"
"""Environment variable with the folder of the stand-in for NVML; trials get it, too."""


def environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns `environ` with the stand-ins; the one for NVML is compiled into `folder`."""
    sys.path.append(str(TESTS))
    import stub_nvml

    # torch is not imported here, as the stand-in for CUDA would have it.
    (uuid,) = re.findall(r'^UUID = "(.*)"', (TESTS / "strict_cuda.py").read_text(encoding="utf-8"), re.M)
    stood_in = {REHEARSAL_VARIABLE: str(folder), "PYTHONPATH": f"{SITE}{os.pathsep}{environ['PYTHONPATH']}"}
    # How many threads add up gradients must not depend on a loader, as it does not on a GPU.
    stood_in |= {"OMP_NUM_THREADS": "1"}
    if stub_nvml.compiler() is not None:
        gpu = stub_nvml.Gpu(uuid=f"GPU-{uuid}", name="NVIDIA Standin", memory_mib=3072)
        gpu = gpu.but(util_gpu=[10, 60, 87], mem_used_mib=[100], gpm=[1], gpm_2=[71.5, 60.25])
        # A driver that is newer than any torch asks for.
        stub_nvml.write(folder / "scenario", [gpu], driver="999.99", cuda=99_990)
        stood_in |= {"LD_LIBRARY_PATH": str(stub_nvml.build(folder).parent)}
    return {name: value for name, value in environ.items() if name != "CUDA_VISIBLE_DEVICES"} | stood_in
