"""Searcher: ask and tell over an Optuna study that can be rebuilt from the stored results."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import warnings
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeper.core.config import Scalar
from sweeper.core.record import SearchResult
from sweeper.core.samplers import AUTO, CLIMB, SAMPLERS, SOBOL
from sweeper.errors import UserError
from sweeper.search.climb import Asked, Climb
from sweeper.search.distributions import combinations, distribution, drawn
from sweeper.search.history import RUNNING, History, Past
from sweeper.search.presets import Hints, presets
from sweeper.search.sampler_process import Helper
from sweeper.search.samplers import make, mixed
from sweeper.spec import SweepSpec
from sweeper.spec.space import same

NUMBER = "sweeper.number"
REPEATS_BEFORE_LISTING = 4
SOBOL_POINTS = 2
LISTED_AT_MOST = 50_000
DRAWN_AT_MOST = 5_000
DRAWN_BEFORE_LISTING = 100
GP_LATEST, GP_RUNNING = 50, 50
"""Trials that a GP sees: its cost grows with the cube of their number."""

optuna.logging.set_verbosity(optuna.logging.ERROR)


class SpaceExhaustedError(Exception):
    """Every configuration of the space has been asked for."""


class Searcher:
    """Asks for configurations of `spec`'s space: the usual starts, Optuna's samplers, a hill-climber.

    The study file is a projection of the results, and the search never depends on it: if it
    disagrees (after a crash, or with a torn line), it is rebuilt.
    """

    def __init__(
        self, path: Path, spec: SweepSpec, results: Mapping[int, SearchResult], hints: Hints | None = None
    ) -> None:
        self._spec, self._results = spec, results
        self._distributions = {name: distribution(p) for name, p in spec.space.items()}
        starts = presets(spec, hints) if spec.search.sampler == AUTO else []
        self._starts = {spec.config(each.params).key(): each for each in starts}
        self._directions = [objective.direction for objective in spec.objectives]
        self._keeps = SAMPLERS.get(spec.search.sampler).keeps
        self._climb = Climb(spec) if len(self._directions) == 1 else None
        self._history = History(self._directions)
        self._running: dict[int, FrozenTrial] = {}
        self._helper: Helper | None = None
        self._listed: Mapping[str, dict[str, Scalar]] = {}
        self._study = self._open(path, results)
        known = {t.user_attrs.get(NUMBER): t.system_attrs for t in self._study.get_trials(deepcopy=False)}
        for number, entry in sorted(results.items()):
            self._learn(number, entry, known.get(number))

    def close(self) -> None:
        """Ends the sampler's process, if it has one."""
        if self._helper is not None:
            self._helper.close()

    def _open(self, path: Path, results: Mapping[int, SearchResult]) -> Study:
        # Optuna would wait half a minute for a killed supervisor's lock; the sweep has its own.
        lock = path.with_name(path.name + ".lock")
        lock.unlink(missing_ok=True)
        # Optuna would append to half a line, and notice only when it reads next.
        if path.exists() and path.read_bytes()[-1:] not in (b"", b"\n"):
            path.unlink()
        results = {
            number: here for number, entry in results.items() if (here := self._placed(entry)) is not None
        }
        try:
            study = self._create(path)
            if self._agrees(study, results):
                return study
        except (ValueError, KeyError, RuntimeError, OSError, AssertionError):
            pass
        path.unlink(missing_ok=True)
        lock.unlink(missing_ok=True)
        with _disk_error():
            study = self._create(path)
            for number, entry in sorted(results.items()):
                study.add_trial(self._frozen(number, entry))
        return study

    def _placed(self, result: SearchResult) -> SearchResult | None:
        """Returns `result` with the parameters of the current space; None if it lies outside.

        Choices, and parameters with one choice left, may have left the space since it was recorded.
        """
        space, fix = self._spec.space, self._spec.fix
        inside = all(name in result.params and of.contains(result.params[name]) for name, of in space.items())
        decided = all(same(value, fix[name]) for name, value in result.params.items() if name in fix)
        if not inside or not decided:
            return None
        return dataclasses.replace(result, params={name: result.params[name] for name in space})

    def _create(self, path: Path) -> Study:
        return optuna.create_study(
            storage=JournalStorage(JournalFileBackend(str(path))),
            study_name=self._spec.name,
            directions=self._directions,
            load_if_exists=True,
        )

    def _agrees(self, study: Study, results: Mapping[int, SearchResult]) -> bool:
        found: dict[int, FrozenTrial] = {}
        for trial in study.get_trials(deepcopy=False):
            if NUMBER not in trial.user_attrs:
                # A repeat that was drawn and discarded.
                if trial.state != TrialState.FAIL:
                    return False
                continue
            found[trial.user_attrs[NUMBER]] = trial
        return found.keys() == results.keys() and all(
            trial.state.is_finished()
            and trial.params == dict(results[number].params)
            and (None if trial.state == TrialState.FAIL else tuple(trial.values)) == results[number].values
            for number, trial in found.items()
        )

    def _frozen(
        self, number: int, result: SearchResult, attributes: Mapping[str, Any] | None = None
    ) -> FrozenTrial:
        return create_trial(
            state=TrialState.FAIL if result.values is None else TrialState.COMPLETE,
            values=result.values,
            params=dict(result.params),
            distributions=self._distributions,
            user_attrs={NUMBER: number},
            system_attrs=self._state_in(attributes or {}),
            constraints=dict(result.constraints),
        )

    def _state_in(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the attributes of a trial in which the sampler keeps its state."""
        if not self._keeps:
            return {}
        return {key: each for key, each in attributes.items() if key.startswith(self._keeps)}

    def ask(self, number: int, taken: Container[str]) -> Asked:
        """Returns parameters for trial `number`, not one of `taken` (keys), and why.

        Raises:
            SpaceExhaustedError: There is none left.
        """
        asked = self._next_start(taken) or self._next_climb(number, taken)
        if asked is None and (asked := self._suggested(number, taken)) is not None:
            return asked
        asked = asked or Asked(self._untried(number, taken), "drawn from what was not tried yet")
        # As Optuna spells them: a start's 1 may stand for 1.0.
        params = {
            name: of.to_external_repr(of.to_internal_repr(asked.params[name]))
            for name, of in self._distributions.items()
        }
        self._running[number] = create_trial(
            state=TrialState.RUNNING, params=params, distributions=self._distributions
        )
        return Asked(params, asked.why)

    def _next_start(self, taken: Container[str]) -> Asked | None:
        """Returns the first of the usual starts that was not asked for yet."""
        left = (each for key, each in self._starts.items() if key not in taken)
        return next((Asked(dict(each.params), f"start: {each.why}") for each in left), None)

    def _next_climb(self, number: int, taken: Container[str]) -> Asked | None:
        if self._sampler() != CLIMB or self._climb is None:
            return None
        return self._climb.ask(taken, self._spec.search.seed * 1_000_003 + number)

    def _sampler(self) -> str:
        """Returns the sampler's name; the meaning of `auto` depends on the search's progress."""
        name = self._spec.search.sampler
        if name != AUTO:
            return name
        return SOBOL if len(self._results) < len(self._starts) + SOBOL_POINTS else CLIMB

    def _suggested(self, number: int, taken: Container[str]) -> Asked | None:
        """Returns the sampler's suggestion; None if it only repeats what was asked for already.

        Raises:
            UserError: A third-party sampler fails, or leaves the space.
        """
        search, name = self._spec.search, self._sampler()
        traits = SAMPLERS.get(name)
        running = list(self._running.values())[-RUNNING:]
        if traits.needs_torch:
            self._helper = self._helper or Helper(name, self._directions, self._distributions)
            shown = [*self._history.trials(GP_LATEST), *running[-GP_RUNNING:]]
            asked = (traits.make, mixed(search.seed, number, 0), number, search.trials)
            params = self._inside(name, self._helper.ask(asked, shown))
            if self._spec.config(params).key() not in taken:
                self._running[number] = create_trial(
                    state=TrialState.RUNNING, params=params, distributions=self._distributions
                )
                return Asked(params, traits.why or f"asked of {name}")
            name, traits = CLIMB, SAMPLERS.get(CLIMB)
        shown = [*self._history.trials(), *running]
        for attempt in range(REPEATS_BEFORE_LISTING):
            seed, point = mixed(search.seed, number, attempt), number + attempt * search.trials
            with _blaming(name):
                study = optuna.create_study(
                    storage=Past(shown),
                    sampler=make(traits.make, seed, point, search.trials),
                    directions=self._directions,
                )
                with warnings.catch_warnings():
                    # CMA-ES warns that it ignores constraints: it learns from the values alone.
                    warnings.simplefilter("ignore", UserWarning)
                    params = self._inside(name, dict(study.ask(self._distributions).params))
            if self._spec.config(params).key() not in taken:
                self._running[number] = study.get_trials(deepcopy=False)[-1]
                return Asked(params, traits.why or f"asked of {name}")
        return None

    def _inside(self, name: str, params: dict[str, Scalar]) -> dict[str, Scalar]:
        for key, parameter in self._spec.space.items():
            if not parameter.contains(params[key]):
                raise UserError(
                    f"`search.sampler: {name}` ({SAMPLERS.provider(name) or 'built in'}) must suggest values "
                    f"in the space, but for `{key}` it suggests {params[key]!r}. Use another sampler."
                )
        return params

    def _untried(self, number: int, taken: Container[str]) -> dict[str, Scalar]:
        """Draws one of the configurations left, from a list of them if that is not too long.

        A space too large to list may still have few configurations, if `when` disables most of its
        parameters; after `DRAWN_AT_MOST` draws in vain it counts as exhausted.
        """
        draw = random.Random(self._spec.search.seed * 1_000_003 + number)
        size = self._spec.size()
        listed = size is not None and size <= LISTED_AT_MOST
        for _ in range(DRAWN_BEFORE_LISTING if listed else DRAWN_AT_MOST):
            params = {name: drawn(of, draw) for name, of in self._distributions.items()}
            if self._spec.config(params).key() not in taken:
                return params
        if listed:
            self._listed = self._listed or dict(sorted(combinations(self._spec).items()))
            left = [params for key, params in self._listed.items() if key not in taken]
            if left:
                return draw.choice(left)
        raise SpaceExhaustedError

    def tell(self, number: int, result: SearchResult) -> None:
        """Tells the search the result of trial `number`, whether it was asked for or not.

        Raises:
            OSError: The study cannot be written.
        """
        running = self._running.pop(number, None)
        trial = self._learn(number, result, running.system_attrs if running else None)
        if trial is not None:
            with _disk_error():
                self._study.add_trial(trial)

    def _learn(
        self, number: int, result: SearchResult, attributes: Mapping[str, Any] | None
    ) -> FrozenTrial | None:
        """Records a trial's result; returns the trial for the study, or None if it lies outside.

        Args:
            attributes: The trial's attributes from the sampler.
        """
        if self._climb is not None:
            self._climb.tell(number, result)
        placed = self._placed(result)
        if placed is None:
            return None
        trial = self._frozen(number, placed, attributes)
        self._history.add(number, trial)
        return trial


@contextlib.contextmanager
def _blaming(name: str) -> Iterator[None]:
    """Turns errors of a third-party sampler into a UserError that names its distribution."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not (owner := SAMPLERS.provider(name)):
            raise
        raise UserError(
            f"`search.sampler: {name}` comes from {owner}, but it failed: {type(error).__name__}: {error}. "
            "Fix it, or use another sampler; the sweep continues where it stopped."
        ) from error


@contextlib.contextmanager
def _disk_error() -> Iterator[None]:
    """Raises the OSError (a full disk) behind Optuna's RuntimeError about its lock."""
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
