"""What torch.compile really did: how much of the model it compiled, from a cold or a warm cache."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch


class CompileWatch:
    """Sets up the compile cache before the first step, and tells afterwards what ran.

    Attributes:
        cache: `cold` or `warm` (compiled code was there before), empty where nothing is compiled.
    """

    def __init__(self, mode: str, folder: Path | None) -> None:
        self.mode = mode
        self.cache = ""
        if mode == "eager":
            return
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
            self.cache = "warm" if any(folder.iterdir()) else "cold"
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()

    def effective(self) -> Mapping[str, str]:
        """Returns what ran in place of the mode asked for, where they differ.

        Dynamo leaves recurrent layers alone and splits the model around them: with nothing else in
        it, nothing at all is compiled.
        """
        if self.mode == "eager":
            return {}
        counters = torch._dynamo.utils.counters
        graphs = counters["stats"]["unique_graphs"]
        if graphs == 0:
            return {"compile.mode": "eager: torch.compile left every layer alone (recurrent layers are)"}
        if counters["graph_break"]:
            return {"compile.mode": f"{self.mode} in {graphs} pieces: recurrent or dynamic parts run eagerly"}
        return {}
