"""Takes training steps apart, in a run that is thrown away: what it trains on is changed.

as it is | lines | one batch, again and again | the loader alone | the batch and its half, in turns

Each part lasts about a second, and is reported at its end: a script that cannot take half a batch has
told everything else by then.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..metering import Channel
from . import FOLDER_VARIABLE
from .batches import LENGTH, VALUE, Reader
from .lines import Sampler
from .observer import Observer
from .outside import Outside
from .samples import Samples

WARM_UP, AS_IT_IS, LINES, ONE_BATCH, LOADER, HALVES, DONE = PARTS = (
    *("warm-up", "as it is", "lines", "one batch", "loader", "halves", "done"),
)
DATA, COPY, FORWARD, BACKWARD, OPTIMIZER, REST, EVALUATION = (
    *("data", "copy", "forward", "backward", "optimizer", "rest", "evaluation"),
)
ARITHMETIC = (FORWARD, BACKWARD, OPTIMIZER)

MIN_STEPS, MIN_SECONDS, MAX_SECONDS = 8, 1.0, 4.0
"""A part has at least so many steps and seconds, but never lasts longer than the last."""
DRAIN_SECONDS = 0.3
"""At most: batches that were ready say nothing of a loader's speed."""


class Laps:
    """Wall and processor seconds by phase; each lap waits until a GPU has finished."""

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self.clear()

    def clear(self) -> None:
        """Starts again, now."""
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    def lap(self, name: str) -> None:
        """Adds the time since the last lap to a phase."""
        if self._cuda.is_initialized():
            self._cuda.synchronize()
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        self.wall[name] = self.wall.get(name, 0.0) + wall_s - self._wall_s
        self.cpu[name] = self.cpu.get(name, 0.0) + cpu_s - self._cpu_s
        self._wall_s, self._cpu_s = wall_s, cpu_s

    @property
    def arithmetic_s(self) -> float:
        """Wall seconds of forward, backward and optimizer."""
        return sum(self.wall.get(name, 0.0) for name in ARITHMETIC)


class Diagnoser(Observer):
    """An observer that takes the steps apart."""

    HAS_FAST_PATH = False

    def __init__(self, torch: Any, channel: Channel) -> None:
        self._laps, self._sampler = Laps(torch), Sampler()
        self._held: Any = None
        self._half: Any = None
        self._is_half = False
        self._arithmetic: dict[bool, list[float]] = {}
        folder = os.environ.get(FOLDER_VARIABLE) or os.getcwd()
        self._outside = Outside(folder, lambda: self.tell({}))
        super().__init__(torch, channel)
        self._begin_part(WARM_UP)

    def begin(self) -> None:
        """Everything is watched from now on."""
        self._outside.install(self._torch)

    def tell(self, message: dict[str, Any]) -> None:
        """Sends a message, with what was found outside: a lost one costs nothing."""
        super().tell({"outside": self._outside.found, **message})

    def _new_sample_counter(self) -> Samples:
        return Samples(self._torch, self.points, self._model_begins)

    # -- phases ------------------------------------------------------------------------------------

    def _lap(self, name: str) -> None:
        phase = EVALUATION if self._pauses.began_s is not None else name
        self._laps.lap(phase)
        self._sampler.phase(phase)

    def fetching(self, iterator: Any) -> None:
        """A loader's iterator is asked for a batch."""
        self._lap(REST)
        super().fetching(iterator)

    def fetched(self, iterator: Any, batch: Any) -> None:
        """A loader's iterator gave a batch."""
        super().fetched(iterator, batch)
        self._lap(DATA)

    def evaluates(self, module: Any) -> None:
        """A module was put into evaluation mode."""
        self._lap(REST)
        super().evaluates(module)

    def _model_begins(self) -> None:
        # What came before prepared the batch that the loader gave, or updated and cut one by hand.
        before = OPTIMIZER if self._is_by_hand else DATA
        self._lap(COPY if self._sample_counter.has_loader else before)

    def backward_begins(self, tensors: Any) -> None:
        """A backward is about to run."""
        self._lap(FORWARD)
        super().backward_begins(tensors)

    def backward_ended(self) -> None:
        """A backward has run."""
        self._lap(BACKWARD)
        super().backward_ended()

    def step_ended(self, optimizer: Any, *rest: Any) -> None:
        """An optimizer has stepped."""
        self._lap(OPTIMIZER)
        super().step_ended(optimizer, *rest)

    def _step_ended(self, optimizer: Any, num_steps: int = 1) -> None:
        super()._step_ended(optimizer, num_steps)
        if self._part == WARM_UP:
            self._sample_counter.watch_model(optimizer)
        elif self._part == HALVES:
            self._arithmetic.setdefault(self._is_half, []).append(self._laps.arithmetic_s)
            self._laps.clear()
        steps, seconds = self._steps - self._steps_before, time.perf_counter() - self._began_s
        if (steps >= MIN_STEPS and seconds >= MIN_SECONDS) or seconds >= MAX_SECONDS:
            self._end_part()

    # -- parts -------------------------------------------------------------------------------------

    def _begin_part(self, part: str) -> None:
        self._part = part
        self._steps_before, self._samples_before = self._steps, self._num_samples
        self._began_s = time.perf_counter()
        self._waits_before = _waits()
        self._laps.clear()
        if part == LINES:
            self._sampler.start()
        elif part == DONE:
            self.tell({"part": DONE})

    def _end_part(self) -> None:
        """Reports a part and begins the next that is possible."""
        part = self._part
        if part in (AS_IT_IS, ONE_BATCH):
            self.tell(
                {
                    "part": part,
                    "steps": self._steps - self._steps_before,
                    "samples": self._num_samples - self._samples_before,
                    "seconds": time.perf_counter() - self._began_s,
                    "wall": self._laps.wall,
                    "cpu": self._laps.cpu,
                    "waited": _longest_wait(self._waits_before),
                }
            )
        elif part == LINES:
            self._sampler.stop()
            self.tell({"part": part, "lines": self._sampler.lines()})
        elif part == HALVES:
            full, half = (self._arithmetic.get(is_half) for is_half in (False, True))
            if full and half:
                self.tell({"part": part, "full": statistics.median(full), "half": statistics.median(half)})
        if part == DONE:
            return
        following = PARTS[PARTS.index(part) + 1]
        has_loader = self._sample_counter.has_loader and self._world_size == 1
        self._begin_part(following if following in (AS_IT_IS, LINES) or has_loader else DONE)

    def take(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """Gives the script its next batch, which may be the one that it had before."""
        if not self._sample_counter.trains(iterator) or self._part in (WARM_UP, AS_IT_IS, LINES, DONE):
            return original(iterator)
        if self._held is None:
            self._held = original(iterator)
        if self._part == LOADER:
            self._loader_alone(original, iterator)
            self._end_part()
        if self._part == HALVES and self._half is None:
            self._half = _half_of(self._held, self._sample_counter.reader(iterator, self._held))
            if self._half is None:
                self._begin_part(DONE)
        self._is_half = self._part == HALVES and not self._is_half
        return _copied(self._half if self._is_half else self._held)

    def _loader_alone(self, original: Callable[[Any], Any], iterator: Any) -> None:
        # The batches of a data set of whole batches do not say how many samples they have.
        per_batch = self._num_samples // self._steps if self._sample_counter.has_single else 0
        reader = None if per_batch else self._sample_counter.reader(iterator, self._held)
        ready = getattr(iterator, "_num_workers", 0) * (getattr(iterator, "_prefetch_factor", None) or 0)
        samples, seconds = 0, 0.0
        self._sampler.phase(REST)
        try:
            began = time.perf_counter()
            for _ in range(ready):
                original(iterator)
                if time.perf_counter() - began > DRAIN_SECONDS:
                    break
            began = time.perf_counter()
            while seconds < MIN_SECONDS:
                batch = original(iterator)
                seconds = time.perf_counter() - began
                samples += reader.read(batch) if reader is not None else per_batch
        except StopIteration:
            # The script gets the batch that is held; what was measured until then counts.
            pass
        self.tell({"part": LOADER, "samples": samples, "seconds": seconds})


def _waits() -> dict[str, float]:
    """Returns the seconds for which each thread was ready to run but had no core; empty if unknown."""
    found = {}
    try:
        for thread in os.listdir("/proc/self/task"):
            with open("/proc/self/task/" + thread + "/schedstat", encoding="ascii") as file:
                found[thread] = int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        pass
    return found


def _longest_wait(before: dict[str, float]) -> float:
    """Returns the longest such wait of a thread since then: threads of one operation wait at once."""
    return max((after - before.get(thread, 0.0) for thread, after in _waits().items()), default=0.0)


def _copied(part: Any) -> Any:
    """Returns a batch in new containers, since some scripts take tensors out of theirs."""
    if type(part) in (list, tuple):
        return type(part)(_copied(each) for each in part)
    return {key: _copied(each) for key, each in part.items()} if type(part) is dict else part


def _half_of(batch: Any, reader: Reader | None) -> Any:
    """Returns the first half of a batch; None if it cannot be cut."""
    if reader is None or reader.what == VALUE or reader.read(batch) < 2:
        return None
    size, dimension = reader.read(batch), 0 if reader.what == LENGTH else int(reader.what)

    def half(part: Any) -> Any:
        shape = getattr(part, "shape", None)
        if shape is not None:
            is_batch = len(shape) > dimension and shape[dimension] == size
            return part.narrow(dimension, 0, size // 2).clone() if is_batch else part
        if isinstance(part, Mapping):
            return type(part)({key: half(each) for key, each in part.items()})  # type: ignore[call-arg]
        if type(part) in (list, tuple):
            is_samples = reader.what == LENGTH and len(part) == size
            return type(part)(part[: size // 2] if is_samples else [half(each) for each in part])
        return part

    return half(batch)
