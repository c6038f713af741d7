"""Reports what torch.compile did: how much of the model it compiled, with a cold or warm cache."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from sweeper.core.config import TrialConfig
from sweeper.system.cpu import usable_cpus

MIN_RECOMPILES = 8


class CompileWatch:
    """Sets up the compile cache before the first step, and reports afterwards what ran."""

    def __init__(self, config: TrialConfig, folder: Path | None) -> None:
        self.mode = config.compile.mode
        self.compiles = config.compile.uses_compiler
        if not self.compiles:
            return
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        # The compiler would use all of the machine's cores, but this trial may have fewer.
        threads = usable_cpus()
        torch._inductor.config.compile_threads = min(
            torch._inductor.config.compile_threads or threads, threads
        )
        # Each static length of a bucket is compiled separately.
        torch._dynamo.config.recompile_limit = max(MIN_RECOMPILES, config.loader.buckets + 1)

    @property
    def cache(self) -> str:
        """`warm` if all compiled code was cached, else `cold`; empty if none was needed."""
        if not self.compiles:
            return ""
        counters = torch._dynamo.utils.counters
        misses = [counters["inductor"][f"fxgraph_cache_{how}"] for how in ("miss", "bypass")]
        misses += [counters["aot_autograd"][f"autograd_cache_{how}"] for how in ("miss", "bypass")]
        if any(misses):
            return "cold"
        return "warm" if counters["inductor"]["fxgraph_cache_hit"] else ""

    def effective_mode(self) -> Mapping[str, str]:
        """Returns what ran instead of the requested mode, if they differ.

        Dynamo skips recurrent layers and splits the model around them; a model with nothing else is
        not compiled at all.
        """
        if not self.compiles:
            return {}
        counters = torch._dynamo.utils.counters
        graphs = counters["stats"]["unique_graphs"]
        if graphs == 0:
            return {"compile.mode": "eager: torch.compile skipped every layer (as it does recurrent ones)"}
        if counters["graph_break"]:
            return {"compile.mode": f"{self.mode} in {graphs} pieces: recurrent or dynamic parts run eagerly"}
        if counters["inductor"]["cudagraph_skips"]:
            return {"compile.mode": f"{self.mode}, partly without CUDA graphs: torch.compile skipped them"}
        return {}
