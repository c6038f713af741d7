"""Counts the training steps, samples and losses of one process, and reports them.

A step is what a person calls one: each optimizer steps once (a GAN has two), after all backward passes
(accumulation has several, LBFGS a dozen); a step that a GradScaler skips does not count. A script that
updates its parameters by hand has one step per backward pass. A script that takes its gradients from
`torch.autograd.grad`, and never calls `backward`, has a backward pass per call.

Nothing here waits for a device, draws from a generator, starts a thread or takes a lock; but for a training
that rests between two steps because it is asked to.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from ..changes.facts import Facts
from ..metering import Channel, finite_or_none
from . import FOLDER_VARIABLE, OUTSIDE_VARIABLE
from .between_steps import BetweenSteps
from .diagnoser import Diagnoser
from .facts import FactFinder
from .fast_path import FastPath
from .first_batches import FirstBatches
from .garbage import MIN_SHARE, CollectorClock, all_objects
from .losses import StepLosses
from .outside import OutsideAudit
from .pauses import Pauses
from .points import Points
from .samples import SampleCounter
from .shares import StepShares
from .stages import Stages
from .step_request import TAKE_APART, open_page, wait

INTERVAL_SECONDS = 0.1
"""Seconds between two messages: each takes 0.15 ms, and the sweep that reads them may need the same core."""

FACTS_AT = 4
"""Step whose end shows what the training uses."""

EARLY_STEPS = 100
"""Number of first steps in which every loss is read, since it changes from step to step."""

UNSTEPPED = 8
"""Backward passes without an optimizer's step after which a script may be one that updates by hand."""


class TrainingObserver:
    """Takes torch's reports of the training in this process, in order.

    `Recorder` derives from it. It overrides the methods that take reports, and `_complete_step`; it sets
    `_has_fast_path`, and `_resumed_s` and `_shares` once its record is complete.

    Attributes:
        points: The wrapped functions of torch.
        fast: The counters of usual steps.
        request_page: Its first byte asks for something after a step (`step_request`).
        sample_counter: Counts the samples of the steps.
        pauses: Evaluations and other time that is not training.
        facts: What the training uses; empty until step `FACTS_AT`.
        steps: Steps so far, without those that `fast` still has.
        num_samples: Samples so far, without those that `fast` still has.
        has_backward: Whether `backward` was called: `torch.autograd.grad` is then no backward pass of a step.
        is_by_hand: Whether the script updates its parameters without an optimizer, as far as is known.
        world_size: Number of processes that this one reports for, 0 if another one reports; None before the
            first message.
    """

    def __init__(self, torch: Any, channel: Channel) -> None:
        self._torch, self._channel = torch, channel
        self.points = Points(self._report_failure)
        self.fast = FastPath()
        self.request_page = open_page()
        self._collector = CollectorClock()
        self._resumed_s = 0.0
        # Whether usual steps are only counted (`fast`).
        self._has_fast_path = True
        self._of_parents: list[StepLosses] = []
        self._outside: OutsideAudit | None = None
        self._reset()

    def begin(self) -> None:
        """Starts to watch what the script does outside of its folder, if that is asked for."""
        if os.environ.get(OUTSIDE_VARIABLE):
            folder = os.environ.get(FOLDER_VARIABLE) or os.getcwd()
            self._outside = OutsideAudit(folder, lambda: self.tell({}))
            self._outside.install(self._torch)

    def restart(self) -> None:
        """Forgets everything in a forked process, since the training is its parent's."""
        self.fast.end()
        self.fast.clear()
        self.fast.num_alike = 0
        # Freeing their pinned memory needs CUDA, which a forked process cannot use.
        self._of_parents.append(self._losses)
        self._reset()

    def _reset(self) -> None:
        """Begins with no step seen, in a new observer or in a forked process."""
        self._diagnoser: Diagnoser | None = None
        self.sample_counter = SampleCounter(self._torch, self.points)
        self._fact_finder = FactFinder(self._torch, self.points)
        self.facts: Facts = {}
        self._last_samples = 0
        self._losses = StepLosses(self._torch)
        self.pauses = Pauses(self._torch, self.points, self._pause_changed)
        self._between, self._first_batches = BetweenSteps(), FirstBatches(self._torch)
        self.steps = self.num_samples = 0
        self._stages, self._shares = Stages(), StepShares()
        self.has_backward = self.is_by_hand = False
        # Number of backward passes since the latest step.
        self._backwards = 0
        # Ids of the optimizers that have stepped for the current batch.
        self._optimizers: set[int] = set()
        # Whether the backward pass that begins is a call of `torch.autograd.grad`.
        self._is_grad = False
        # Whether an optimizer is in its step.
        self._is_stepping = False
        # Whether a backward pass has begun within a step, as in the closure of LBFGS.
        self._has_closure = False
        # Whether an optimizer has stepped, or exists.
        self._has_optimizer = False
        # Number of backward passes before that is known.
        self._unstepped = 0
        self._fetch_began_s = self._sent_at_s = 0.0
        # Time, and seconds of looking for garbage, at which the facts were read; seconds of rest since then.
        self._facts_s = self._facts_collected_s = self._rested_s = 0.0
        # Time of the latest step, or of a rest's end; `fast.moment_s` is that of the latest look.
        self._moment_s = time.perf_counter()
        self.world_size: int | None = None
        self._source = ""

    # -- what torch reports ------------------------------------------------------------------------

    def pass_begins(self, loader: Any) -> None:
        """Notes that an iterator of a loader is asked for."""
        if self.fast.is_on:
            self.leave_fast_path()
        self._between.pass_begins(loader, time.perf_counter(), has_stepped=self.steps > 0)

    def saved(self, seconds: float, frame: Any) -> None:
        """Notes that `torch.save` has returned to a frame."""
        if self.steps or self.fast.steps:
            self._between.saved(seconds, frame, is_pausing=self.pauses.began_s is not None)

    def fetch_begins(self, iterator: Any) -> None:
        """Notes that a loader's iterator is asked for a batch."""
        if self._diagnoser is not None:
            self._diagnoser.request_begins()
        self._fetch_began_s = now = time.perf_counter()
        pauses, trains = self.pauses, self.sample_counter.trains(iterator)
        if not trains or pauses.is_evaluating or pauses.began_s is not None:
            pauses.fetch_begins(trains, now, self.steps)

    def fetch(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """Returns the script's next batch."""
        return original(iterator) if self._diagnoser is None else self._diagnoser.fetch(original, iterator)

    def fetch_ended(self, iterator: Any, batch: Any) -> None:
        """Notes that a loader's iterator returned a batch."""
        self.sample_counter.count_batch(iterator, batch, self.pauses.is_evaluating)
        if not self.facts and self._torch.is_grad_enabled():
            self._first_batches.add(iterator, batch)
        if self.sample_counter.trains(iterator):
            self._shares.fetch_ended(self._fetch_began_s)
            self._between.batch_arrived(iterator, time.perf_counter(), self.pauses.ended_s)
        if self._diagnoser is not None:
            self._diagnoser.fetch_ended(iterator, batch)

    def evaluation_begins(self, module: Any) -> None:
        """Notes that a module was put into evaluation mode."""
        if self._diagnoser is not None:
            self._diagnoser.request_begins()
        if self.steps:
            self.pauses.evaluation_begins(module, time.perf_counter(), self.steps)

    def _pause_changed(self) -> None:
        """Reports that a pause has begun or ended."""
        if self._diagnoser is not None:
            self._diagnoser.pause_changed()
        self._shares.interrupt()
        self._send()

    def grad_begins(self, outputs: Any) -> None:
        """Notes that gradients are about to be computed by `torch.autograd.grad`."""
        self._is_grad = True
        self.backward_begins(outputs)
        self._is_grad = False

    def backward_begins(self, tensors: Any) -> None:
        """Notes that a backward pass is about to run."""
        if self._diagnoser is not None:
            self._diagnoser.backward_begins(tensors)
        self.has_backward = self.has_backward or not self._is_grad
        if self._is_stepping:
            self._has_closure = True
            if self._backwards:
                # LBFGS computes the loss of its batch again and again.
                return
        is_news = self.sample_counter.backward()
        if self.pauses.began_s is not None:
            self.pauses.backward(self._fetch_began_s, is_news)
        if self.sample_counter.has_loader and not self.sample_counter.has_new and not self._backwards:
            # This is another optimizer's loss on the batch of the previous step, such as a GAN's second.
            return
        self._backwards += 1
        self._losses.read(tensors, self.steps)

    def note_scaled_loss(self, result: Any, outputs: Any) -> None:
        """Notes that a GradScaler has multiplied a loss by its scale."""
        self._losses.note_scaled_loss(result, outputs)

    def backward_ended(self) -> None:
        """Notes that a backward pass has run."""
        if self._diagnoser is not None:
            self._diagnoser.backward_ended()
        if self.is_by_hand:
            # Several gradients of one batch make one step.
            if self._backwards or not self.sample_counter.has_loader:
                self._complete_step(None)
        elif not self._has_optimizer:
            self._unstepped += 1
            if self._unstepped == UNSTEPPED:
                self._look_for_optimizer()

    def step_begins(self, *_: Any) -> None:
        """Notes that an optimizer is about to step."""
        self._is_stepping = True
        self._shares.optimizer_begins()

    def step_ended(self, optimizer: Any, *_: Any) -> None:
        """Notes that an optimizer has stepped."""
        if self._diagnoser is not None:
            self._diagnoser.optimizer_ended()
        self._is_stepping, self.is_by_hand, self._has_optimizer = False, False, True
        self._shares.optimizer_ended()
        if self.is_capturing():
            raise RuntimeError("its steps are replayed from a CUDA graph, which does not report them")
        key = id(optimizer)
        if self._optimizers and key not in self._optimizers and not self.sample_counter.has_new:
            # Another optimizer steps for the same batch.
            self._optimizers.add(key)
            return
        is_only = self._optimizers <= {key}
        self._optimizers.clear()
        self._optimizers.add(key)
        is_usual = (
            self._has_fast_path
            and self.steps >= EARLY_STEPS
            and is_only
            and self.sample_counter.are_usual
            and self._backwards > 0
            and not self._has_closure
            and not self._losses.are_scaled
            and self.pauses.began_s is None
        )
        self._has_closure = False
        self._stages.step(optimizer, self.steps)
        self._complete_step(optimizer)
        is_usual = is_usual and self._diagnoser is None
        self.fast.step(key, self.sample_counter.current, self._moment_s, is_usual=is_usual)

    def obey_request(self) -> None:
        """Rests until another training has taken its turn, or takes the steps that follow apart."""
        if self.request_page[0] == TAKE_APART:
            self._take_apart()
            return
        fast = self.fast
        if fast.steps:
            self._hand_over(fast.moment_s)
        cuda = self._torch.cuda
        if cuda.is_initialized() and not self.is_capturing():
            # The device would go on with what is queued.
            cuda.synchronize()
        self._moment_s = time.perf_counter()
        self._send()
        if not self.world_size:
            # Another rank reports, and this one waits for it in its next exchange.
            return
        self.tell({"resting": self.steps})
        began_s = self._moment_s
        wait(self.request_page)
        self._shares.interrupt()
        self._resumed_s = self._moment_s = fast.moment_s = time.perf_counter()
        self._rested_s += self._moment_s - began_s

    def _take_apart(self) -> None:
        if self._diagnoser is None:
            if self.fast.is_on:
                self.leave_fast_path()
            self._diagnoser = Diagnoser(self._torch, self)

    # -- the fast path ----------------------------------------------------------------------------

    def send_counted(self) -> None:
        """Reports the steps that were only counted."""
        self._hand_over(self.fast.moment_s)
        self._send()

    def read_loss(self, tensors: Any) -> None:
        """Reads a loss that is not a single number on the CPU."""
        self._losses.read(tensors, self.steps)

    def leave_fast_path(self) -> None:
        """Leaves the fast path, since something unusual is about to happen."""
        self._hand_over(time.perf_counter())
        self.fast.end()
        self._shares.interrupt()

    def _hand_over(self, now: float) -> None:
        fast = self.fast
        if fast.steps:
            self._moment_s = fast.latest_s(now)
        self.steps += fast.steps
        self.num_samples += fast.samples
        self.sample_counter.add(fast.samples_ahead)
        self._losses.add(fast.loss, fast.num_losses)
        fast.clear()

    def finish(self) -> None:
        """Reports the steps since the last message when the process exits."""
        if self.fast.is_on:
            self.leave_fast_path()
        if self._moment_s > self._sent_at_s and self.steps:
            self._send()

    # -- what is reported --------------------------------------------------------------------------

    def _look_for_optimizer(self) -> None:
        kind = self._torch.optim.Optimizer
        self._has_optimizer = any(issubclass(type(value), kind) for value in all_objects())
        if not self._has_optimizer:
            self.is_by_hand = True
            self._complete_step(None, self._unstepped)

    def _complete_step(self, optimizer: Any, num_steps: int = 1) -> None:
        self._moment_s = now = time.perf_counter()
        self._shares.step_ended(now, num_steps)
        self.steps += num_steps
        samples = self.sample_counter.count_step(optimizer, num_steps)
        self.num_samples += samples
        self._losses.step_ended(self.steps, self._backwards // num_steps)
        if not self.facts and self.steps >= FACTS_AT:
            counter = self.sample_counter
            seen = self._first_batches.facts()
            self.facts = {**self._fact_finder.find(optimizer, counter.loader, counter.sampler), **seen}
            # Several backward passes on one batch, as for two losses, accumulate nothing.
            num_batches = counter.num_batches if counter.has_loader else self._backwards
            self.facts["accumulate_steps"] = max(1, num_batches // num_steps)
            self._facts_s, self._facts_collected_s = now, self._collector.seconds
        if self.facts and samples == self._last_samples > 0:
            # The first samples that are counted may be those of several steps.
            self.facts.setdefault("batch_size", samples // self.facts["accumulate_steps"])
        self._last_samples = samples
        self._backwards = 0
        if now - self._sent_at_s >= INTERVAL_SECONDS or self.steps == 1:
            self._send()
        if self._diagnoser is not None:
            self._diagnoser.step_ended(optimizer)
        if self.request_page[0]:
            self.obey_request()

    def _send(self) -> None:
        self._sent_at_s = time.perf_counter()
        self.fast.due_s = self._sent_at_s + INTERVAL_SECONDS
        if self.is_capturing():
            # Any query of the device now would spoil the graph.
            return
        if self.world_size is None:
            self.world_size = self._find_world_size()
        if not self.world_size:
            return
        message: dict[str, Any] = {
            "t": self._moment_s,
            "steps": self.steps,
            "samples": self.num_samples * self.world_size,
            "paused": self.pauses.total_s,
            "pausing": self.pauses.began_s is not None,
        }
        if self._resumed_s:
            message["resumed"] = self._resumed_s
        if self._shares.steps:
            message["shares"] = self._shares.message()
        if self.facts:
            share = self._collector_share()
            message["facts"] = {**self.facts, "collector_share": share} if share >= MIN_SHARE else self.facts
        message["between"] = self._between.message()
        if self._between.place:
            message["saved_at"] = self._between.place
        if self._stages.number:
            message["stage"] = [self._stages.number, self._stages.began_at]
        loss = self._losses.pop_mean()
        if loss is not None:
            message["loss"] = finite_or_none(loss)
        source = f"{'backwards' if self.is_by_hand else 'optimizer steps'}, {self.sample_counter.source}"
        if source != self._source:
            self._source = source
            message["source"] = source[:-2] if source.endswith(", ") else source
        self.tell(message)

    def _collector_share(self) -> float:
        """Returns the share of the time since the first steps in which Python looks for garbage."""
        seconds = self._moment_s - self._facts_s - self._rested_s
        return round((self._collector.seconds - self._facts_collected_s) / seconds, 3) if seconds > 0 else 0.0

    def is_capturing(self) -> bool:
        """Returns whether the device's work is being captured as a graph, and must not be waited for."""
        cuda = self._torch.cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    def tell(self, message: dict[str, Any]) -> None:
        """Sends a message with the id of this process."""
        # With all that was found outside so far, so that a lost message costs nothing.
        outside = {"outside": self._outside.texts} if self._outside is not None else {}
        self._channel.send({"by": "hook", "pid": os.getpid(), **outside, **message})

    def _report_failure(self, why: str) -> None:
        self.fast.end()
        if self._diagnoser is not None:
            self._diagnoser.watch_ended()
        self.tell({"failed": why})

    def _find_world_size(self) -> int:
        """Returns the number of processes that this one reports for; 0 if another one reports."""
        distributed = self._torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return 0 if distributed.get_rank() else int(distributed.get_world_size())
        return 0 if os.environ.get("RANK", "0") not in ("", "0") else int(os.environ.get("WORLD_SIZE") or 1)
