"""In a rehearsal: every interpreter that imports torch gets the strict stand-in for CUDA."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

STAND_IN = Path(__file__).parents[3] / "tests" / "strict_cuda.py"


class _AfterTorch:
    """A finder on `sys.meta_path` that puts the stand-in below torch as soon as that is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec("torch")
        assert spec is not None
        assert spec.loader is not None
        execute = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            _stand_in()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _stand_in() -> None:
    # Under a name that is no file's: the stand-in is not the user's code.
    strict_cuda = sys.modules["strict_cuda"] = types.ModuleType("strict_cuda")
    exec(compile(STAND_IN.read_text(encoding="utf-8"), "<strict_cuda>", "exec"), vars(strict_cuda))
    strict_cuda.StrictCuda().__enter__()


if folder := os.environ.get("SWEEPER_REHEARSAL"):
    os.environ["STUB_NVML_SCENARIO"] = os.path.join(folder, "scenario")
    sys.meta_path.insert(0, _AfterTorch())  # type: ignore[arg-type]
