"""Searches a space by ask and tell, over an Optuna study that can be rebuilt from the stored results."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
import warnings
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweeper.core.config import Scalar, TrialConfig
from sweeper.core.record import SearchResult
from sweeper.core.samplers import AUTO, CLIMB, SAMPLERS, SOBOL
from sweeper.errors import UserError
from sweeper.schema import SweepSpec
from sweeper.schema.space import is_same
from sweeper.search.climb import Climb, Suggestion
from sweeper.search.distributions import combinations, distributions_of, draw_value
from sweeper.search.history import RUNNING, History, PastStorage
from sweeper.search.presets import Hints, StartPoint, presets, usual_size
from sweeper.search.prior import Prior
from sweeper.search.sampler_process import Helper
from sweeper.search.samplers import make, mix_seed
from sweeper.search.study_file import StudyFile, as_trial

REPEATS_BEFORE_LISTING = 4
SOBOL_POINTS = 2
SMALL_GAIN = 0.01
"""Expected gain of the climb at which a search without `search.regret` looks elsewhere."""
LISTED_AT_MOST = 50_000
DRAWN_AT_MOST = 5_000
DRAWN_BEFORE_LISTING = 100
GP_LATEST, GP_RUNNING = 50, 50
"""Trials that a GP sees: its cost grows with the cube of their number."""


class SpaceExhaustedError(Exception):
    """Raised once every useful configuration has been asked for; the message says why none is left."""


@dataclasses.dataclass(frozen=True, slots=True)
class _NextTrial:
    """The next trial.

    Attributes:
        attributes: System attributes that the sampler gave its suggested trial.
    """

    params: Mapping[str, Scalar]
    why: str
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Searcher:
    """Proposes configurations of `spec`'s space, from usual starts, Optuna's samplers and a hill climber."""

    def __init__(
        self, path: Path, spec: SweepSpec, results: Mapping[int, SearchResult], hints: Hints | None = None
    ) -> None:
        """Learns the results so far.

        Args:
            path: File that stores the results as an Optuna study.
            results: Results by trial number; later results are not added to this mapping.
        """
        # Optuna's log lines would come between sweeper's.
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._spec = spec
        self._distributions = distributions_of(spec)
        starts = presets(spec, hints) if spec.search.sampler == AUTO else []
        self._late = [start for start in starts if start.is_late and len(spec.objectives) == 1]
        self._starts = {spec.config(start.params).key(): start for start in starts if start not in self._late}
        self._has_looked = False
        guess = hints or Hints()
        self._prior = Prior.of(guess.past, spec, guess.baseline)
        self._directions = [objective.direction for objective in spec.objectives]
        self._keeps = SAMPLERS.get(spec.search.sampler).keeps
        self._climb = Climb(spec, self._prior) if len(self._directions) == 1 else None
        self._history = History(self._directions)
        self._num_results = 0
        self._running: dict[int, FrozenTrial] = {}
        self._helper: Helper | None = None
        self._listed: Mapping[str, dict[str, Scalar]] = {}
        inside = {
            number: here for number, result in results.items() if (here := self._restrict(result)) is not None
        }
        self._study = StudyFile(path, spec, inside)
        attributes = self._study.attributes()
        for number, result in sorted(results.items()):
            self._learn(number, result, attributes.get(number, {}))

    def expected_gain(self, keys: Container[str]) -> float | None:
        """Returns the expected gain of the best untried step from the best, as the logarithm of a ratio.

        None with several objectives, while starts are left, or while too little is known.
        """
        if self._climb is None or self._next_start(keys) is not None:
            return None
        gain = self._climb.expected_gain(keys)
        return None if self._next_elsewhere(gain, keys) is not None else gain

    def gains_of(self, configs: Sequence[TrialConfig]) -> list[float]:
        """Returns each configuration's expected gain over the best, as the logarithm of a ratio."""
        return self._climb.gains_of(configs) if self._climb is not None else [0.0] * len(configs)

    def num_other_sizes(self, keys: Container[str]) -> int:
        """Returns how many untried starts do other work than the baseline's."""
        return sum(key not in keys for key, start in self._starts.items() if not self._does_usual_work(start))

    def drop_other_sizes(self) -> None:
        """Drops the starts that do other work than the baseline's."""
        self._starts = {key: start for key, start in self._starts.items() if self._does_usual_work(start)}

    def close(self) -> None:
        """Ends the sampler's process, if it has one."""
        if self._helper is not None:
            self._helper.close()

    def ask(self, number: int, keys: Container[str]) -> Suggestion:
        """Returns untried parameters for trial `number` (their key is not in `keys`), and why.

        Raises:
            SpaceExhaustedError: No configuration is left.
            UserError: A third-party sampler fails, or suggests values outside the space.
        """
        trial = (
            self._next_start(keys)
            or self._next_stack(keys)
            or self._next_after_climb(keys)
            or self._next_climb(number, keys)
            or self._next_suggestion(number, keys)
            or _NextTrial(self._draw_untried(number, keys), "drawn from the untried configurations")
        )
        # As Optuna spells them: a start's 1 may stand for 1.0.
        params = {
            name: of.to_external_repr(of.to_internal_repr(trial.params[name]))
            for name, of in self._distributions.items()
        }
        self._running[number] = create_trial(
            state=TrialState.RUNNING,
            params=params,
            distributions=self._distributions,
            system_attrs=dict(trial.attributes),
        )
        return Suggestion(params, trial.why)

    def tell(self, number: int, result: SearchResult) -> None:
        """Records the result of trial `number`, whether it was asked for or not.

        Raises:
            OSError: The study cannot be written.
        """
        running = self._running.pop(number, None)
        trial = self._learn(number, result, running.system_attrs if running else {})
        if trial is not None:
            self._study.add(trial)

    def _learn(self, number: int, result: SearchResult, attributes: Mapping[str, Any]) -> FrozenTrial | None:
        """Records a trial's result; returns the trial for the study, or None if it lies outside the space.

        Args:
            attributes: The trial's attributes from the sampler.
        """
        self._num_results += 1
        placed = self._restrict(result)
        if placed is None:
            return None
        if self._climb is not None:
            self._climb.tell(number, placed)
        # A failed trial has a made-up value, and counts as beyond a limit.
        is_measured = not any(violation > 0 for violation in placed.constraints.values())
        if self._prior is not None and placed.values and is_measured:
            self._prior.tell(self._spec.config(placed.params), placed.values[0])
        trial = as_trial(number, placed, self._distributions, self._state_in(attributes))
        self._history.add(number, trial)
        return trial

    def _restrict(self, result: SearchResult) -> SearchResult | None:
        """Returns `result` with the parameters of the current space; None if it lies outside.

        Choices, and parameters with one choice left, may have left the space since it was recorded.
        """
        space, fix = self._spec.space, self._spec.fix
        inside = all(name in result.params and of.contains(result.params[name]) for name, of in space.items())
        decided = all(is_same(value, fix[name]) for name, value in result.params.items() if name in fix)
        if not inside or not decided:
            return None
        return dataclasses.replace(result, params={name: result.params[name] for name in space})

    def _state_in(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the attributes of a trial in which the sampler keeps its state."""
        if not self._keeps:
            return {}
        return {key: value for key, value in attributes.items() if key.startswith(self._keeps)}

    def _next_start(self, keys: Container[str]) -> _NextTrial | None:
        """Returns the first start that was not asked for yet.

        An earlier sweep's best comes first. Once two trials agree with that sweep, the usual starts that do
        the baseline's work are skipped.
        """
        starts = list(self._starts.values())
        left = starts
        prior = self._prior
        if prior is not None and (prior.holds or prior.is_untried):
            remembered = [StartPoint(params, why) for params, why in prior.starts()]
            left = [*remembered[:1], *starts[:1], *(remembered[1:] if prior.holds else ()), *starts[1:]]
            if prior.is_sure:
                left = [start for start in left if start in remembered or not self._does_usual_work(start)]
            left = [start for start in left if not prior.fails(self._spec.config(start.params))]
        untried = (start for start in left if self._spec.config(start.params).key() not in keys)
        return next((_NextTrial(start.params, f"start: {start.why}") for start in untried), None)

    def _does_usual_work(self, start: StartPoint) -> bool:
        spec = self._spec
        return spec.config(start.params).work_key() == spec.baseline_config().work_key()

    def _next_stack(self, keys: Container[str]) -> _NextTrial | None:
        """Returns the changes that gained alone, combined, once there are results for all usual starts."""
        if self._spec.search.sampler != AUTO or self._climb is None or self._num_results < len(self._starts):
            return None
        suggestion = self._climb.stack(keys)
        return _NextTrial(*suggestion) if suggestion is not None else None

    def _next_after_climb(self, keys: Container[str]) -> _NextTrial | None:
        """Returns a configuration elsewhere once the climb has nothing left that is worth a trial."""
        if self._climb is None or self._has_looked:
            return None
        return self._next_elsewhere(self._climb.expected_gain(keys), keys)

    def _next_elsewhere(self, gain: float | None, keys: Container[str]) -> _NextTrial | None:
        """Returns the first late start or Sobol point that was not asked for yet, if `gain` is small.

        The climb may be in a local optimum. If an earlier sweep guides the search, it knows better. Before
        the climb, these would delay it by trials that are rarely near the best.
        """
        regret, prior = self._spec.search.regret, self._prior
        min_gain = SMALL_GAIN if regret is None else regret
        if self._spec.search.sampler != AUTO or gain is None or gain > min_gain or (prior and prior.holds):
            return None
        point = next((point for key, point in self._elsewhere.items() if key not in keys), None)
        self._has_looked = point is None
        return point

    @functools.cached_property
    def _elsewhere(self) -> Mapping[str, _NextTrial]:
        """The late starts and the Sobol points, by key, at the size that can win."""
        points = [_NextTrial(start.params, f"start: {start.why}") for start in self._late]
        size = usual_size(self._spec)
        for index in range(SOBOL_POINTS):
            if (point := self._ask_here(SOBOL, index, ())) is not None:
                points.append(_NextTrial({**point.params, **size}, point.why))
        return {self._spec.config(point.params).key(): point for point in points}

    def _next_climb(self, number: int, keys: Container[str]) -> _NextTrial | None:
        """Returns a neighbour of the best so far, if the sampler climbs and one is left."""
        if self._sampler() != CLIMB or self._climb is None:
            return None
        suggestion = self._climb.ask(keys, self._spec.search.seed * 1_000_003 + number)
        return _NextTrial(*suggestion) if suggestion is not None else None

    def _next_suggestion(self, number: int, keys: Container[str]) -> _NextTrial | None:
        """Returns the sampler's suggestion; None if it only repeats what was asked for already."""
        name = self._sampler()
        if not SAMPLERS.get(name).needs_torch:
            return self._ask_here(name, number, keys)
        # A sampler that needs torch is slow, so it is asked only once.
        return self._ask_helper(name, number, keys) or self._ask_here(CLIMB, number, keys)

    def _sampler(self) -> str:
        """Returns the sampler's name; the meaning of `auto` depends on the search's progress."""
        name = self._spec.search.sampler
        if name != AUTO:
            return name
        # The late starts include points of SOBOL, but with several objectives there is no climb to end.
        is_early = self._num_results < len(self._starts) + SOBOL_POINTS
        return SOBOL if self._climb is None and is_early else CLIMB

    def _ask_here(self, name: str, number: int, keys: Container[str]) -> _NextTrial | None:
        """Asks the sampler `name` in this process, a few times if it repeats itself."""
        search, traits = self._spec.search, SAMPLERS.get(name)
        past = [*self._history.trials(), *self._running_trials(RUNNING)]
        for attempt in range(REPEATS_BEFORE_LISTING):
            seed, point = mix_seed(search.seed, number, attempt), number + attempt * search.trials
            with _blaming(name):
                study = optuna.create_study(
                    storage=PastStorage(past),
                    sampler=make(traits.make, seed, point, search.trials),
                    directions=self._directions,
                )
                with warnings.catch_warnings():
                    # CMA-ES warns that it ignores constraints: it learns from the values alone.
                    warnings.simplefilter("ignore", UserWarning)
                    params = self._check_inside(name, dict(study.ask(self._distributions).params))
            if self._spec.config(params).key() not in keys:
                attributes = study.get_trials(deepcopy=False)[-1].system_attrs
                return _NextTrial(params, traits.why or f"suggested by {name}", attributes)
        return None

    def _ask_helper(self, name: str, number: int, keys: Container[str]) -> _NextTrial | None:
        """Asks the sampler `name` in its own process, once."""
        search, traits = self._spec.search, SAMPLERS.get(name)
        self._helper = self._helper or Helper(name, self._directions, self._distributions)
        past = [*self._history.trials(GP_LATEST), *self._running_trials(GP_RUNNING)]
        sampler = (traits.make, mix_seed(search.seed, number, 0), number, search.trials)
        params = self._check_inside(name, self._helper.ask(sampler, past))
        if self._spec.config(params).key() in keys:
            return None
        return _NextTrial(params, traits.why or f"suggested by {name}")

    def _running_trials(self, count: int) -> list[FrozenTrial]:
        return list(self._running.values())[-count:]

    def _check_inside(self, name: str, params: dict[str, Scalar]) -> dict[str, Scalar]:
        for key, parameter in self._spec.space.items():
            if not parameter.contains(params[key]):
                raise UserError(
                    f"`search.sampler: {name}` must suggest values in the space, but for `{key}` it suggests "
                    f"{params[key]!r}. Use another sampler."
                )
        return params

    def _draw_untried(self, number: int, keys: Container[str]) -> dict[str, Scalar]:
        """Draws an untried configuration, from a list of all if that is not too long.

        A space too large to list may still have few configurations, if `when` disables most of its
        parameters; after `DRAWN_AT_MOST` failed draws it counts as exhausted.
        """
        draw = random.Random(self._spec.search.seed * 1_000_003 + number)
        size = self._spec.size()
        listed = size is not None and size <= LISTED_AT_MOST
        for _ in range(DRAWN_BEFORE_LISTING if listed else DRAWN_AT_MOST):
            params = {name: draw_value(of, draw) for name, of in self._distributions.items()}
            if self._spec.config(params).key() not in keys:
                return params
        if listed:
            self._listed = self._listed or dict(sorted(combinations(self._spec).items()))
            left = [params for key, params in self._listed.items() if key not in keys]
            if left:
                return draw.choice(left)
        raise SpaceExhaustedError("the space is exhausted")


@contextlib.contextmanager
def _blaming(name: str) -> Iterator[None]:
    """Turns errors of a third party's sampler into a UserError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if name in SAMPLERS.builtin:
            raise
        raise UserError(
            f"`search.sampler: {name}` failed: {type(error).__name__}: {error}. "
            "Fix it, or use another sampler; the sweep continues where it stopped."
        ) from error
