"""Searcher: ask and tell over an Optuna study that can be rebuilt from what was told."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from sweeper.core.config import Scalar
from sweeper.search.climb import climb, reason
from sweeper.search.distributions import combinations, distribution, drawn
from sweeper.search.helper import ask
from sweeper.search.presets import Hints, presets
from sweeper.search.samplers import IN_A_HELPER, mixed, sampler
from sweeper.search.told import Told
from sweeper.spec import SweepSpec

NUMBER = "sweeper.number"
REPEATS_BEFORE_LISTING = 20
SOBOL_POINTS = 2
LISTED_AT_MOST = 50_000
DRAWN_AT_MOST = 5_000

optuna.logging.set_verbosity(optuna.logging.ERROR)


_SAID = {"qmc": "spread over the space (Sobol)", "random": "drawn at random"}


class Asked(NamedTuple):
    """Parameters to try, and why those."""

    params: dict[str, Scalar]
    why: str


class SpaceExhaustedError(Exception):
    """Every configuration of the space has been asked for."""


class Searcher:
    """Asks Optuna for configurations of `spec`'s space.

    The study file is a projection: where it disagrees with `told` (a crash, a torn line), it is made
    anew from it.
    """

    def __init__(
        self, path: Path, spec: SweepSpec, told: Mapping[int, Told], hints: Hints | None = None
    ) -> None:
        self._spec = spec
        self._told = told
        self._starts = presets(spec, hints) if spec.search.sampler == "auto" else []
        self._path = path
        self._distributions = {name: distribution(p) for name, p in spec.space.items()}
        self._running: dict[int, Trial] = {}
        self._study = self._open(path, told)

    def _open(self, path: Path, told: Mapping[int, Told]) -> Study:
        # A killed supervisor's lock would be waited for half a minute; the sweep has one of its own.
        lock = path.with_name(path.name + ".lock")
        lock.unlink(missing_ok=True)
        # Optuna would append to half a line, and find out only when it next reads.
        if path.exists() and path.read_bytes()[-1:] not in (b"", b"\n"):
            path.unlink()
        told = {number: entry for number, entry in told.items() if self._fits(entry)}
        try:
            study = self._create(path)
            if self._agrees(study, told):
                return study
        except (ValueError, KeyError, RuntimeError, OSError, AssertionError):
            pass
        path.unlink(missing_ok=True)
        lock.unlink(missing_ok=True)
        with _lock_told():
            study = self._create(path)
            for number, entry in sorted(told.items()):
                study.add_trial(self._frozen(number, entry))
        return study

    def _fits(self, told: Told) -> bool:
        """Whether it lies in the space as it is now: the machine may offer less than when it was asked."""
        space = self._spec.space
        return told.params.keys() == space.keys() and all(
            parameter.contains(told.params[name]) for name, parameter in space.items()
        )

    def _create(self, path: Path) -> Study:
        return optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path))),
            study_name=self._spec.name,
            directions=[objective.direction for objective in self._spec.objectives],
            load_if_exists=True,
        )

    def _agrees(self, study: Study, told: Mapping[int, Told]) -> bool:
        found: dict[int, FrozenTrial] = {}
        for trial in study.get_trials(deepcopy=False):
            if NUMBER not in trial.user_attrs:
                # A repeat, drawn and put away again.
                if trial.state != TrialState.FAIL:
                    return False
                continue
            found[trial.user_attrs[NUMBER]] = trial
        return found.keys() == told.keys() and all(
            trial.state.is_finished()
            and trial.params == dict(told[number].params)
            and (None if trial.state == TrialState.FAIL else tuple(trial.values)) == told[number].values
            for number, trial in found.items()
        )

    def _frozen(self, number: int, told: Told) -> FrozenTrial:
        return create_trial(
            state=TrialState.FAIL if told.values is None else TrialState.COMPLETE,
            values=told.values,
            params=dict(told.params),
            distributions=self._distributions,
            user_attrs={NUMBER: number},
            constraints=dict(told.constraints),
        )

    def ask(self, number: int, taken: Collection[str]) -> Asked:
        """Returns parameters for trial `number` whose configuration is not in `taken` (keys), and why those.

        Raises:
            SpaceExhaustedError: There is none left.
            OSError: The study cannot be written.
        """
        with _lock_told():
            return self._ask(number, taken)

    def _ask(self, number: int, taken: Collection[str]) -> Asked:
        chosen = self._next_start(taken) or self._next_climb(number, taken)
        name = self._sampler()
        trial = self._suggested(name, number, taken) if chosen is None else None
        if trial is None:
            chosen = chosen or Asked(self._untried(number, taken), "drawn from what was not tried yet")
            self._study.enqueue_trial(chosen.params)
            trial = self._study.ask(self._distributions)
        trial.set_user_attr(NUMBER, number)
        self._running[number] = trial
        return Asked(dict(trial.params), chosen.why if chosen else _SAID.get(name, f"asked of {name}"))

    def _next_start(self, taken: Collection[str]) -> Asked | None:
        """Returns the first of the usual starts that was not asked for."""
        left = (each for each in self._starts if self._spec.config(each.params).key() not in taken)
        return next((Asked(each.params, f"start: {each.why}") for each in left), None)

    def _next_climb(self, number: int, taken: Collection[str]) -> Asked | None:
        search = self._spec.search
        if self._sampler() != "climb" or len(self._spec.objectives) > 1:
            return None
        params = climb(self._spec, self._told, taken, search.seed * 1_000_003 + number)
        return Asked(params, reason(self._spec, self._told, params)) if params is not None else None

    def _sampler(self) -> str:
        """Returns the sampler's name; what `auto` stands for depends on how far the search is."""
        name = self._spec.search.sampler
        if name != "auto":
            return name
        return "qmc" if len(self._told) < len(self._starts) + SOBOL_POINTS else "climb"

    def _suggested(self, name: str, number: int, taken: Collection[str]) -> Trial | None:
        """Returns a trial that Optuna suggests; None where it only has what was asked for already."""
        search = self._spec.search
        if name == IN_A_HELPER:
            params = ask(
                self._path, self._study.study_name, mixed(search.seed, number, 0), self._distributions
            )
            if self._spec.config(params).key() not in taken:
                self._study.enqueue_trial(params)
                return self._study.ask(self._distributions)
            name = "climb"
        for attempt in range(REPEATS_BEFORE_LISTING):
            self._study.sampler = sampler(name, search.seed, number, attempt, search.trials)
            with warnings.catch_warnings():
                # CMA-ES says that it passes over constraints: it learns from the values it is told.
                warnings.simplefilter("ignore", UserWarning)
                trial = self._study.ask(self._distributions)
            if self._spec.config(trial.params).key() not in taken:
                return trial
            self._study.tell(trial, state=TrialState.FAIL)
        return None

    def _untried(self, number: int, taken: Collection[str]) -> dict[str, Scalar]:
        """Draws one of the configurations that are left: from a list of them, where that is not too long.

        A space too large to list may yet hold few configurations, where `when` puts most of its
        parameters out of effect; after so many draws in vain it counts as exhausted.
        """
        draw = random.Random(self._spec.search.seed * 1_000_003 + number)
        size = self._spec.size()
        if size is None or size > LISTED_AT_MOST:
            for _ in range(DRAWN_AT_MOST):
                params = {name: drawn(of, draw) for name, of in self._distributions.items()}
                if self._spec.config(params).key() not in taken:
                    return params
            raise SpaceExhaustedError
        left = {key: params for key, params in combinations(self._spec).items() if key not in taken}
        if not left:
            raise SpaceExhaustedError
        return left[draw.choice(sorted(left))]

    def tell(self, number: int, told: Told) -> None:
        """Tells the study what became of trial `number`; one it was never asked for is added.

        Raises:
            OSError: The study cannot be written.
        """
        with _lock_told():
            self._tell(number, told)

    def _tell(self, number: int, told: Told) -> None:
        trial = self._running.pop(number, None)
        if trial is None:
            if self._fits(told):
                self._study.add_trial(self._frozen(number, told))
            return
        for name, violation in told.constraints.items():
            trial.set_constraint(name, violation)
        if told.values is None:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, list(told.values))


@contextlib.contextmanager
def _lock_told() -> Iterator[None]:
    """Raises the OSError behind Optuna's RuntimeError: on a full disk it lets go of a lock it never had."""
    try:
        yield
    except RuntimeError as error:
        found, seen = None, error.__context__
        while seen is not None:
            found = seen if isinstance(seen, OSError) else found
            seen = seen.__context__
        if found is None:
            raise
        raise OSError(found.errno, found.strerror, found.filename) from error
