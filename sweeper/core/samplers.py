"""Lists the samplers and their traits. Imports no Optuna.

A new sampler is one function and one row of the table; a third party's sampler is the import string of a
row. Only the searcher branches on the names `auto` and `climb`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sweeper.core.registry import Registry

AUTO, CLIMB, SOBOL = "auto", "climb", "qmc"
"""AUTO and its parts: it tries the usual starts, then those of CLIMB, and some of SOBOL before it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerTraits:
    """One sampler.

    Attributes:
        make: Import string of a function `(seed, point, trials) -> optuna.samplers.BaseSampler`. It
            is called for every ask, so the sampler keeps no state except in the study's trials.
            `seed` is for this ask alone; `point` counts the asks, for a sequence without a seed per
            ask; `trials` is the number of trials to search.
        why: The report's explanation of a trial that it suggested; `suggested by NAME` if empty.
        needs_torch: It imports torch, which the supervisor must not do, so it runs in a separate process.
        keeps: Prefix of the trials' system attributes in which it keeps its state; empty for none.
    """

    make: str
    why: str = ""
    needs_torch: bool = False
    keeps: str = ""


_TPE = "sweeper.search.samplers:tpe"
BUILTIN: Mapping[str, SamplerTraits] = {
    AUTO: SamplerTraits(make=_TPE),
    "tpe": SamplerTraits(make=_TPE),
    "gp": SamplerTraits(make="sweeper.search.samplers:gp", needs_torch=True),
    "cmaes": SamplerTraits(make="sweeper.search.samplers:cmaes", keeps="cma:"),
    "random": SamplerTraits(make="sweeper.search.samplers:at_random", why="drawn at random"),
    SOBOL: SamplerTraits(make="sweeper.search.samplers:qmc", why="spread over the space (Sobol)"),
    # TPE takes over where there is nothing left to climb, and with several objectives.
    CLIMB: SamplerTraits(make=_TPE, why="suggested by TPE"),
}
SAMPLERS = Registry("`search.sampler`", SamplerTraits, BUILTIN)
"""What `search.sampler` can name."""
