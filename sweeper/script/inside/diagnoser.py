"""Takes training steps apart, in a process whose training does not count any more: its batches are changed.

as it is | lines | one batch, again and again | the loader alone | the batch and its half, in turns

On a GPU, two more parts follow the lines: the lines that wait for the GPU, and the kernels alone.

A batch of one sample has no half, so it takes turns with a batch of two.

Each part lasts one second to a few and is reported at its end: a script that fails on half a batch has
reported everything else by then.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from .batches import LENGTH, VALUE, SizeReader
from .gpu import KernelTime, Waits, copy_seconds
from .laps import BACKWARD, DATA, EVALUATION, FORWARD, OPTIMIZER, OTHER, PREPARATION, DeviceLaps, Laps
from .lines import LineSampler
from .pauses import Pauses
from .samples import SampleCounter

WARM_UP, AS_IT_IS, LINES, WAITS, KERNELS, ONE_BATCH, LOADER, HALVES, DONE = PARTS = (
    *("warm-up", "as it is", "lines", "waits", "kernels", "one batch", "loader", "halves", "done"),
)
OF_A_GPU = (WAITS, KERNELS)
OF_A_LOADER = (ONE_BATCH, LOADER, HALVES)

MIN_PART_STEPS, MIN_PART_SECONDS, MAX_PART_SECONDS = 8, 1.0, 4.0
"""Minimum steps and seconds of a part, and its maximum seconds. A part for the GPU alone has no minimum
seconds."""
MIN_IN_TURNS, MAX_SECONDS_IN_TURNS = 20, 10.0
"""The same for the batch and its half: the median of a few steps each would differ from run to run by more
than what it has to tell."""
MIN_PROFILED = 3
"""Minimum steps with a profiler; the first one is not counted."""
DRAIN_SECONDS = 0.3
"""Maximum seconds for skipping batches that were prefetched, which say nothing about a loader's speed."""


class _HeldBatch:
    """The batch of a loader that a script is given again and again.

    Attributes:
        iterator: The loader's latest iterator.
        step: The latest step that it was given for.
        other: The batch of another size with which it takes turns; None before that is needed.
    """

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.iterator: Any = None
        self.other: Any = None
        self.step = 0


class ObservedTraining(Protocol):
    """What an observer (`inside.observer`) has seen of a training so far.

    Attributes:
        steps: Training steps.
        num_samples: Samples that were trained on.
        world_size: Number of processes that train together; None until it is known.
        is_by_hand: Whether the script updates its parameters without an optimizer.
    """

    steps: int
    num_samples: int
    world_size: int | None
    is_by_hand: bool
    pauses: Pauses
    sample_counter: SampleCounter

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the training uses (`changes.facts.Facts`)."""

    def tell(self, message: dict[str, Any]) -> None:
        """Sends a message to sweeper."""


class Diagnoser:
    """Takes the steps apart that an observer sees from now on; the observer tells what happens, in order."""

    def __init__(self, torch: Any, observer: ObservedTraining) -> None:
        self._torch, self._observer = torch, observer
        self._laps, self._sampler = Laps(), LineSampler()
        self._on_gpu = False
        self._device: Any = None
        self._waits: Waits | None = None
        self._kernels: KernelTime | None = None
        self._latest: list[Any] = []
        self._has_begun = False
        self._held: dict[int, _HeldBatch] = {}
        self._is_other = self._is_double = False
        self._of_steps: dict[bool, list[Laps]] = {False: [], True: []}
        self._begin_part(WARM_UP)

    # -- phases ------------------------------------------------------------------------------------

    def _lap(self, name: str) -> None:
        phase = EVALUATION if self._observer.pauses.began_s is not None else name
        self._laps.lap(phase)
        self._sampler.assign_phase(phase)
        if self._waits is not None:
            # A wait during a copy to the GPU is part of the copy.
            self._waits.end_phase(phase not in (PREPARATION, EVALUATION))

    def request_begins(self) -> None:
        """Notes that a loader is about to be asked for a batch, or a module to evaluate."""
        self._lap(OTHER)

    def fetch_ended(self, iterator: Any, batch: Any) -> None:
        """Notes that a loader's iterator returned a batch."""
        self._lap(DATA)
        if self._observer.sample_counter.trains(iterator):
            self._has_begun = False
            if self._on_gpu:
                # The tensors are noted now, since some scripts replace them in the batch with copies.
                self._latest = list(_tensors(self._torch, batch))

    def pause_changed(self) -> None:
        """Notes that a pause has begun or ended."""
        if self._observer.pauses.began_s is None:
            self._laps.lap(EVALUATION)
            self._sampler.assign_phase(EVALUATION)
            if self._waits is not None:
                self._waits.end_phase(is_wait=False)
        elif self._part == KERNELS:
            # The kernels of an evaluation belong to no step.
            self._end_part()

    def watch_ended(self) -> None:
        """Notes that the training is not watched any more."""
        if self._waits is not None:
            self._waits.stop(0)
            self._waits = None

    def _model_begins(self) -> None:
        if self._has_begun:
            # Another call in the same step: another view, the next of a sequence, a recomputed activation.
            return
        self._has_begun = True
        # Until now, the script prepared the loader's batch. Without a loader, it updated parameters by hand
        # or made a batch.
        before = OPTIMIZER if self._observer.is_by_hand else DATA
        self._lap(PREPARATION if self._observer.sample_counter.has_loader else before)

    def backward_begins(self, tensors: Any) -> None:
        """Notes that a backward pass is about to run."""
        self._lap(FORWARD)
        if self._part == WARM_UP:
            loss = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
            self._on_gpu = getattr(loss, "is_cuda", False) or self._observer.facts.get("device") == "cuda"
            self._device = loss.device if getattr(loss, "is_cuda", False) else None

    def backward_ended(self) -> None:
        """Notes that a backward pass has run."""
        self._lap(BACKWARD)

    def optimizer_ended(self) -> None:
        """Notes that an optimizer has stepped."""
        self._lap(OPTIMIZER)

    def step_ended(self, optimizer: Any) -> None:
        """Notes that a step has ended.

        Args:
            optimizer: The optimizer that has stepped; None for parameters that are updated by hand.
        """
        self._has_begun = False
        if self._on_gpu and self._torch.cuda.is_current_stream_capturing():
            # The device must not be queried during a capture.
            return
        if self._part == WARM_UP:
            self._observer.sample_counter.watch_model(optimizer, self._model_begins)
        elif self._part == KERNELS and self._kernels is not None:
            self._kernels.step_ended()
        elif self._part == HALVES:
            self._of_steps[self._is_other].append(self._laps)
            self._laps = self._new_laps()
        steps, seconds = self._observer.steps - self._steps_before, time.perf_counter() - self._began_s
        in_turns = self._part == HALVES
        # A process that has just begun has no queues that filled while it rested.
        has_just_begun = self._part == WARM_UP and self._steps_before <= 1
        is_long = seconds >= MIN_PART_SECONDS or self._part in OF_A_GPU or has_just_begun
        max_seconds = MAX_SECONDS_IN_TURNS if in_turns else MAX_PART_SECONDS
        is_too_long = seconds >= max_seconds and (self._part != KERNELS or steps >= MIN_PROFILED)
        if (steps >= (MIN_IN_TURNS if in_turns else MIN_PART_STEPS) and is_long) or is_too_long:
            self._end_part()

    def _new_laps(self) -> Laps:
        is_read = self._part in (AS_IT_IS, ONE_BATCH, HALVES)
        return DeviceLaps(self._torch, self._device) if is_read and self._on_gpu else Laps()

    # -- parts -------------------------------------------------------------------------------------

    def _begin_part(self, part: str) -> None:
        self._part = part
        self._steps_before, self._samples_before = self._observer.steps, self._observer.num_samples
        self._began_s = time.perf_counter()
        self._waits_before = _waits()
        self._laps = self._new_laps()
        if part == LINES:
            self._sampler.start()
        elif part == WAITS:
            self._waits = Waits(self._torch)
        elif part == KERNELS and self._observer.world_size != 0:
            # The script may be profiling itself, or torch may be unable to profile this GPU.
            with contextlib.suppress(Exception):
                self._kernels = KernelTime(self._torch, self._device)
            # The profiler takes seconds to start.
            self._began_s = time.perf_counter()
        elif part == DONE:
            self._report({"part": DONE})

    def _end_part(self) -> None:
        """Reports the current part and begins the next one that is possible."""
        part, steps = self._part, self._observer.steps - self._steps_before
        if part in (AS_IT_IS, ONE_BATCH):
            self._report(
                {
                    "part": part,
                    "steps": steps,
                    "samples": self._observer.num_samples - self._samples_before,
                    "wall": self._laps.wall,
                    "seconds": time.perf_counter() - self._began_s,
                    "host": self._laps.host,
                    "cpu": self._laps.cpu,
                    "waited": _longest_wait(self._waits_before),
                    "copy": self._copy_seconds(),
                }
            )
        elif part == LINES:
            self._sampler.stop()
            self._report({"part": part, "lines": self._sampler.lines()})
        elif part == WAITS and self._waits is not None:
            self._report({"part": part, "lines": self._waits.stop(steps)})
            self._waits = None
        elif part == KERNELS:
            busy = None
            with contextlib.suppress(Exception):
                busy = self._kernels and self._kernels.stop()
            self._kernels = None
            self._report({"part": part, "seconds": busy})
        elif part == HALVES:
            self._tell_halves()
        if part == DONE:
            return
        skipped: tuple[str, ...] = () if self._on_gpu else OF_A_GPU
        if self._observer.facts.get("accumulate_steps", 1) > 1:
            # A step has several batches.
            skipped += (HALVES,)
        if not self._observer.sample_counter.has_loader or self._observer.world_size != 1:
            skipped += OF_A_LOADER
        following = PARTS[PARTS.index(part) + 1 :]
        self._begin_part(next(name for name in following if name not in skipped))

    def _report(self, message: dict[str, Any]) -> None:
        # Each rank changes parts at a different moment, so only the first rank reports.
        if self._observer.world_size != 0:
            self._observer.tell(message)

    def _copy_seconds(self) -> float:
        # There may be no memory for another batch.
        with contextlib.suppress(Exception):
            return copy_seconds(self._torch, self._latest, self._device) if self._on_gpu else 0.0
        return 0.0

    def _tell_halves(self) -> None:
        # The first step of a size makes its kernels and gets its memory.
        steps, others = ([step.arithmetic_s for step in laps[1:]] for laps in self._of_steps.values())
        if steps and others:
            # A script that reads ahead has fetched the next batch before a step ends, which swaps the two.
            shorter, longer = sorted((statistics.median(steps), statistics.median(others)))
            full, half = longer, shorter
            if self._is_double:
                full, half = shorter, shorter - (longer - shorter) / 2
            self._report({"part": HALVES, "full": full, "half": half})

    def fetch(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """Returns the script's next batch, which may be the same as before."""
        if not self._observer.sample_counter.trains(iterator) or self._part not in OF_A_LOADER:
            return original(iterator)
        key = id(iterator._index_sampler)
        held = self._held.get(key)
        if held is None:
            # A script may make its loader anew for each pass.
            latest = self._observer.steps - 1
            self._held = {key: held for key, held in self._held.items() if held.step >= latest}
            held = self._held[key] = _HeldBatch(original(iterator))
        held.iterator, held.step = iterator, self._observer.steps
        # A step may have the batches of several loaders; parts change with the first.
        is_first = held is next(iter(self._held.values()))
        if self._part == LOADER and is_first:
            self._measure_loaders(original)
            self._end_part()
        if self._part == HALVES and held.other is None:
            self._is_double = self._observer.num_samples == self._observer.steps
            reader = self._observer.sample_counter.reader(iterator, held.batch)
            held.other = _resize(held.batch, reader, is_double=self._is_double)
            if held.other is None:
                self._begin_part(DONE)
        if is_first:
            self._is_other = self._part == HALVES and not self._is_other
        return _copy_containers(held.other if self._is_other and held.other is not None else held.batch)

    def _measure_loaders(self, original: Callable[[Any], Any]) -> None:
        # If a data set's items are whole batches, they do not show their number of samples.
        observer = self._observer
        has_single = observer.sample_counter.has_single
        per_batch = observer.num_samples // observer.steps if has_single else 0
        iterators = [held.iterator for held in self._held.values()]
        samples = dict.fromkeys(iterators, 0)
        seconds = 0.0
        self._sampler.assign_phase(OTHER)
        try:
            began = time.perf_counter()
            for iterator in iterators:
                ready = getattr(iterator, "_num_workers", 0) * (
                    getattr(iterator, "_prefetch_factor", None) or 0
                )
                for _ in range(ready):
                    self._observer.sample_counter.size(iterator, original(iterator))
                    if time.perf_counter() - began > DRAIN_SECONDS:
                        break
            began = time.perf_counter()
            while seconds < MIN_PART_SECONDS:
                for iterator in iterators:
                    size = self._observer.sample_counter.size(iterator, original(iterator))
                    samples[iterator] += per_batch or size
                seconds = time.perf_counter() - began
        except StopIteration:
            # The script gets the held batch; what was measured so far counts.
            pass
        self._observer.tell({"part": LOADER, "samples": max(samples.values()), "seconds": seconds})


def _waits() -> dict[str, float]:
    """Returns the seconds for which each thread was ready to run but had no core; empty if unknown."""
    waits = {}
    try:
        for thread in os.listdir("/proc/self/task"):
            with open("/proc/self/task/" + thread + "/schedstat", encoding="ascii") as file:
                waits[thread] = int(file.read().split()[1]) / 1e9
    except (OSError, IndexError):
        pass
    return waits


def _longest_wait(before: dict[str, float]) -> float:
    """Returns the longest wait of a thread since `before`: the threads of one operation wait in parallel."""
    return max((after - before.get(thread, 0.0) for thread, after in _waits().items()), default=0.0)


def _copy_containers(part: Any) -> Any:
    """Returns a batch in new containers, since some scripts take tensors out of theirs."""
    if type(part) in (list, tuple):
        return type(part)(_copy_containers(item) for item in part)
    return {key: _copy_containers(value) for key, value in part.items()} if type(part) is dict else part


def _tensors(torch: Any, part: Any) -> Iterator[Any]:
    """Yields the tensors of a batch."""
    if torch.is_tensor(part):
        yield part
    elif isinstance(part, (Mapping, list, tuple)):
        for value in part.values() if isinstance(part, Mapping) else part:
            yield from _tensors(torch, value)


def _resize(batch: Any, reader: SizeReader | None, *, is_double: bool) -> Any:
    """Returns the first half of a batch, or the batch twice; None if that is not possible."""
    if reader is None or reader.what == VALUE or (not is_double and reader.read(batch) < 2):
        return None
    size, dimension = reader.read(batch), 0 if reader.what == LENGTH else int(reader.what)

    def resize(part: Any) -> Any:
        shape = getattr(part, "shape", None)
        if shape is not None:
            if len(shape) <= dimension or shape[dimension] != size:
                return part
            if is_double:
                return part.repeat_interleave(2, dimension)
            return part.narrow(dimension, 0, size // 2).clone()
        if isinstance(part, Mapping):
            return type(part)({key: resize(value) for key, value in part.items()})  # type: ignore[call-arg]
        if type(part) in (list, tuple):
            if reader.what == LENGTH and len(part) == size:
                return part * 2 if is_double else part[: size // 2]
            return type(part)([resize(item) for item in part])
        return part

    return resize(batch)
