"""Lets a loader's workers begin a pass as new ones would, and checks that these would read the same.

this process                       a worker
────────────────────────────────────────────────────────────────────────────────────────
first pass: starts it       ─►     WorkerStart: its state as it begins
next pass: Renewal(seed)    ─►     compares its state, reads a few rows, seeds itself as torch does
compares the rows           ◄─     RenewalAnswer(fault, batch)
  with those that a new worker would read, in a child process
"""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from ..change import ChangeRefusedError
from .children import fault_in_child, result_of_child, seed_worker
from .collating import check_sampler, fetcher, num_rows_of
from .dataset_file import digest_of_state
from .trees import are_equal

MAX_DIGEST_SECONDS = 0.2
"""Maximum seconds for a digest of the data set: each worker computes one in each pass."""
CHECK_ROWS, CHECK_SECONDS = 8, 5.0
"""Rows that a new worker would read at each check, and seconds that it has."""
CHECK_SHARE = 0.05
"""Largest share of the time that such checks take after the first ones."""
ALWAYS = 3
"""Number of first passes that are checked in any case."""
FIRST_BATCHES = 1
"""Number of first batches in which a worker may change what it reads from."""
_CHECK_SEED = 20_000
_ANSWER = "sweeper"
_SIMPLE = (bool, int, float, str, type(None))
_NOTHING = ModuleType("nothing")
_MAX_DEPTH = 8


class Renewal(NamedTuple):
    """A message that makes a worker begin a pass; it is sent like the row numbers of a batch.

    Attributes:
        seed: The base seed of the pass.
        rows: Rows to read before that, with a seed that a new worker has for them, too.
    """

    seed: int
    rows: tuple[int, ...]


class RenewalAnswer(NamedTuple):
    """What a worker answers.

    Attributes:
        fault: Why it is not as it was when it was started; empty if it is.
        batch: The rows that it was to read, as a batch; None without any.
    """

    fault: str
    batch: Any = None


class WorkerStart:
    """Takes the place of a loader's `worker_init_fn`; in each worker, it stays to renew it."""

    def __init__(self, original: Callable[[int], None] | None) -> None:
        self._original = original
        self._state: _State | None = None
        self._num_batches = 0

    def __call__(self, number: int) -> None:
        """Starts a worker as the script's own function does; notes its state around the first batch."""
        torch = sys.modules["torch"]
        if self._original is not None:
            self._original(number)
        fetchers = torch.utils.data._utils.fetch._MapDatasetFetcher
        fetch = fetchers.fetch

        def fetch_or_renew(fetcher: Any, rows: Any) -> Any:
            if type(rows) is Renewal:
                return self._renew(torch, number, rows, fetcher, functools.partial(fetch, fetcher))
            if not self._num_batches:
                self._note_state(torch, fetcher)
            batch = fetch(fetcher, rows)
            self._num_batches += 1
            if self._num_batches == FIRST_BATCHES:
                # What a worker opens or imports with its first rows, a new one would, too.
                self._note_state(torch, fetcher)
            return batch

        fetchers.fetch = fetch_or_renew

    def _note_state(self, torch: Any, fetcher: Any) -> None:
        self._state = _State("", ())
        # If it has none, it is not renewed; the script's own reading goes on.
        with contextlib.suppress(Exception):
            self._state = _State.of(torch, fetcher.dataset, fetcher.collate_fn)

    def _renew(
        self, torch: Any, number: int, renewal: Renewal, fetcher: Any, fetch: Callable[[Any], Any]
    ) -> RenewalAnswer:
        dataset, batch = fetcher.dataset, None
        state = _State.of(torch, dataset, fetcher.collate_fn)
        if self._num_batches == FIRST_BATCHES:
            return RenewalAnswer("its workers read too few batches to show whether they keep anything")
        if self._state not in (None, state):
            return RenewalAnswer("what its workers read has changed since they were started")
        count = torch.utils.data._utils.worker._worker_info.num_workers
        if renewal.rows:
            seed_worker(torch, number, count, _CHECK_SEED, dataset)
            batch = fetch(list(renewal.rows))
        seed_worker(torch, number, count, renewal.seed, dataset)
        if self._original is not None:
            self._original(number)
        return RenewalAnswer("", batch)


class _State(NamedTuple):
    """What the rows that a worker reads may depend on.

    Attributes:
        digest: A digest of its data set and of how batches are collated.
        globals: Simple global variables beside them, by module and name; of collections, the length.
    """

    digest: str
    globals: tuple[tuple[str, str, Any], ...]

    @classmethod
    def of(cls, torch: Any, dataset: Any, collate: Any) -> _State:
        """Returns the state of this process."""
        modules = [getattr(collate, "__module__", "")]
        owner = dataset
        while owner is not None and len(modules) < _MAX_DEPTH:
            modules.append(type(owner).__module__)
            owner = getattr(owner, "dataset", None)
        values = (
            (module, name, value if isinstance(value, _SIMPLE) else len(value))
            for module in dict.fromkeys(modules)
            for name, value in vars(sys.modules.get(module, _NOTHING)).copy().items()
            if isinstance(value, (*_SIMPLE, list, dict, set)) and not name.startswith("__")
        )
        return cls(digest_of_state(torch, dataset, collate), tuple(values))


class KeptWorkers:
    """The workers of one loader."""

    def __init__(self, torch: Any, loader: Any) -> None:
        """Checks that the workers of a loader may live on.

        Raises:
            ChangeRefusedError: They may not.
        """
        self._torch = torch
        self._num_rows = num_rows_of(torch, loader)
        check_sampler(loader)
        began_s = time.perf_counter()
        self._state = self._digest(loader)
        if (took_s := time.perf_counter() - began_s) > MAX_DIGEST_SECONDS:
            raise ChangeRefusedError(
                f"comparing its data set takes {took_s:.1f} s in each pass, more than {MAX_DIGEST_SECONDS}"
            )
        self._iterator: Any = None
        self._pass: weakref.ReferenceType[PassIterator] | None = None
        self._traits: Any = None
        self._num_checks, self._checked_s, self._check_s = 0, 0.0, 0.0

    def begin_pass(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        """Returns the iterator of a pass that begins; of another one if the last has not ended.

        Raises:
            ChangeRefusedError: A new worker would not read the same.
        """
        latest = self._pass() if self._pass is not None else None
        if latest is not None and not latest.is_over:
            return original(loader)
        traits = _traits(loader)
        is_kept = self._iterator is not None and not self._iterator._shutdown and traits == self._traits
        if is_kept:
            self._renew(loader)
            self._iterator._reset(loader)
        else:
            if self._iterator is not None:
                self._state = self._digest(loader)
            self._iterator, self._traits = _start(loader, original), traits
        begun = PassIterator(self._iterator)
        self._pass = weakref.ref(begun)
        return begun

    def _renew(self, loader: Any) -> None:
        torch, iterator = self._torch, self._iterator
        generator = torch.default_generator if loader.generator is None else loader.generator
        before = generator.get_state()
        # As torch's iterators draw: the sampler's `iter`, then the base seed.
        iter(loader._index_sampler)
        seed = torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item()
        rows: tuple[int, ...] = ()
        now = time.monotonic()
        if self._num_checks < ALWAYS or (now - self._checked_s) * CHECK_SHARE > self._check_s:
            # The rows differ in each process and each pass, whatever the script's seed.
            rows = tuple(random.SystemRandom().sample(range(self._num_rows), min(self._num_rows, CHECK_ROWS)))
        try:
            self._compare(loader, _answers(iterator, seed, rows), rows)
        except Exception:
            # The workers of the script's own iterator begin from here.
            generator.set_state(before)
            iterator._shutdown_workers()
            self._iterator = None
            raise
        iterator._base_seed = seed
        if rows:
            self._num_checks, self._checked_s = self._num_checks + 1, time.monotonic()
            self._check_s = self._checked_s - now

    def _compare(self, loader: Any, answers: list[RenewalAnswer], rows: tuple[int, ...]) -> None:
        torch, first = self._torch, answers[0]
        for fault in filter(None, (answer.fault for answer in answers)):
            raise ChangeRefusedError(fault)
        if not rows:
            return

        def compare() -> str:
            if digest_of_state(torch, loader.dataset, loader.collate_fn) != self._state:
                return "the training changes its data set, which workers that live on do not see"
            seed_worker(torch, 0, loader.num_workers, _CHECK_SEED, loader.dataset)
            batch = fetcher(torch, loader).fetch(list(rows))
            is_same = are_equal(torch, batch, first.batch)
            return "" if is_same else "a new worker reads other rows, or rows with parts that are no tensors"

        if why := fault_in_child(torch, loader, compare, CHECK_SECONDS):
            raise ChangeRefusedError(why)

    def _digest(self, loader: Any) -> str:
        """Returns a digest of a loader's data set, from a child: pickling may run the data set's code."""

        def digest() -> str:
            return digest_of_state(self._torch, loader.dataset, loader.collate_fn)

        return str(result_of_child(self._torch, loader, digest, CHECK_SECONDS))


class PassIterator:
    """One pass over a loader: what its iterator yields, once.

    Attributes:
        is_over: Whether it has ended.
    """

    def __init__(self, iterator: Any) -> None:
        self._iterator, self.is_over = iterator, False

    def __iter__(self) -> Iterator[Any]:
        """Returns itself."""
        return self

    def __next__(self) -> Any:
        """Returns the next batch."""
        if self.is_over:
            raise StopIteration
        try:
            return next(self._iterator)
        except StopIteration:
            self.is_over = True
            raise

    def __len__(self) -> int:
        """Returns the number of batches."""
        return len(self._iterator)

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of torch's iterator, which some frameworks use."""
        return getattr(self._iterator, name)


def _traits(loader: Any) -> tuple[Any, ...]:
    """Returns what of a loader its workers were started with."""
    objects = (loader.dataset, loader.collate_fn, loader.worker_init_fn, loader._index_sampler)
    context = loader.multiprocessing_context
    options = (
        loader.num_workers,
        loader.prefetch_factor,
        loader.pin_memory,
        loader.timeout,
        loader.drop_last,
    )
    return (*map(id, (*objects, context)), *options)


def _start(loader: Any, original: Callable[[Any], Any]) -> Any:
    """Returns an iterator of a loader whose workers live on."""
    before = loader.worker_init_fn, loader.persistent_workers
    loader.worker_init_fn = WorkerStart(before[0])
    # The loader allows no script to set it.
    loader.__dict__["persistent_workers"] = True
    try:
        return original(loader)
    finally:
        loader.worker_init_fn, loader.__dict__["persistent_workers"] = before


def _answers(iterator: Any, seed: int, rows: tuple[int, ...]) -> list[RenewalAnswer]:
    """Asks all workers to begin a pass, and returns what they answer, in their order."""
    count = iterator._num_workers
    for number in range(count):
        iterator._index_queues[number].put(((_ANSWER, number), Renewal(seed, () if number else rows)))
    answers: dict[int, RenewalAnswer] = {}
    while len(answers) < count:
        index, data = iterator._get_data()
        # Batches that the script has not taken may come first.
        if type(index) is tuple and index[0] == _ANSWER:
            if not isinstance(data, RenewalAnswer):
                raise ChangeRefusedError("its workers cannot begin another pass")
            answers[index[1]] = data
    return [answers[number] for number in range(count)]
