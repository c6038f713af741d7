"""A whole training step as a CUDA graph: one launch for gather, forward, backward and optimizer.

loader's batch ──copy──► static tensors ──► [gather ► forward ► backward ► optimizer] replayed
                         (an index, or a batch)      captured once per shape
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

import torch

from sweeper.core.measurement import FailureKind
from sweeper.core.progress import TrialFailedError
from sweeper.trainer.pipeline import Batch

EAGER_STEPS = 3
"""Eager steps of each shape before its capture, which must not contain lazy initialisation."""

_NO_MEMORY = re.compile("out of memory|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED")

Body = Callable[[], None]


class Capture(Protocol):
    """Runs a function once, or records what it launches."""

    def run(self, body: Body) -> None:
        """Runs `body` as it will be recorded."""

    def record(self, body: Body) -> Body:
        """Records the launches of `body` without running them; returns a function that does."""


class CudaCapture:
    """Captures CUDA graphs that share one memory pool.

    They can share it because everything that a step leaves to the next (weights, optimizer state,
    accumulated gradients) is allocated outside the graphs, by the eager steps.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._aside = torch.cuda.Stream()

    def run(self, body: Body) -> None:
        """Runs `body` on a separate stream, as a capture does."""
        current = torch.cuda.current_stream()
        self._aside.wait_stream(current)
        with torch.cuda.stream(self._aside):
            body()
        current.wait_stream(self._aside)

    def record(self, body: Body) -> Body:
        """Captures `body`."""
        graph = torch.cuda.CUDAGraph()
        # Loader threads (pinned memory, events) must not abort the capture.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._aside, capture_error_mode="thread_local"):
            body()
        return graph.replay


class CapturedStep:
    """Runs a step eagerly a few times, captures it, and replays it from then on.

    Args:
        step: Trains on a batch; `(batch, length, update)` as `__call__` takes them.
        capture: How a step is recorded.
    """

    def __init__(self, step: Callable[[Batch, int, bool], None], capture: Capture) -> None:
        self._step, self._capture = step, capture
        self._eager: dict[object, int] = {}
        self._graphs: dict[object, tuple[Batch, Body]] = {}

    @property
    def num_graphs(self) -> int:
        """Graphs captured so far."""
        return len(self._graphs)

    def __call__(self, batch: Batch, length: int, update: bool) -> None:
        """Trains on `batch` (padded to `length`), with or without an optimizer step at the end.

        Raises:
            TrialFailedError: The step cannot be captured. Training cannot continue after a failed
                capture.
        """
        key = (length, update, *((name, tensor.shape, tensor.dtype) for name, tensor in batch.items()))
        graph = self._graphs.get(key)
        if graph is None:
            seen = self._eager[key] = self._eager.get(key, 0) + 1
            if seen <= EAGER_STEPS:
                self._capture.run(lambda: self._step(batch, length, update))
                return
            graph = self._graphs[key] = self._capture_step(batch, length, update)
        static, replay = graph
        for name, tensor in batch.items():
            static[name].copy_(tensor, non_blocking=True)
        replay()

    def _capture_step(self, batch: Batch, length: int, update: bool) -> tuple[Batch, Body]:
        static = {name: tensor.clone() for name, tensor in batch.items()}
        try:
            return static, self._capture.record(lambda: self._step(static, length, update))
        except RuntimeError as error:
            # The first in the chain is the cause; the others come from ending the capture.
            chain = [error]
            while isinstance(chain[-1].__context__, RuntimeError):
                chain.append(chain[-1].__context__)
            for exception in chain:
                # A graph also takes memory from the driver, whose errors are of other classes.
                if isinstance(exception, torch.OutOfMemoryError) or _NO_MEMORY.search(str(exception)):
                    raise torch.OutOfMemoryError(str(exception)) from error
            cause = chain[-1]
            raise TrialFailedError(
                FailureKind.UNSUPPORTED,
                f"the step cannot be captured as a CUDA graph: {str(cause).partition(chr(10))[0]}",
            ) from error
