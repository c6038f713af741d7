"""A stand-in for the Hugging Face library: its Trainer's events, and what it prints."""

import time
from types import SimpleNamespace

import work


class TrainerCallback:
    def on_step_end(self, args, state, control, **kwargs): ...

    def on_log(self, args, state, control, logs=None, **kwargs): ...

    def on_evaluate(self, args, state, control, metrics=None, **kwargs): ...


class Trainer:
    def __init__(self, args, callbacks=()):
        self.args, self.callbacks = args, list(callbacks)

    def _call(self, event, **kwargs):
        for callback in self.callbacks:
            getattr(callback, event)(self.args, SimpleNamespace(), SimpleNamespace(), **kwargs)

    def train(self):
        args = self.args
        size = args.train_batch_size * args.gradient_accumulation_steps
        began = time.perf_counter()
        for step in range(1, args.max_steps + 1):
            work.train_step(size)
            self._call("on_step_end")
            if step % args.logging_steps == 0:
                speed = args.logging_steps * size / (time.perf_counter() - began)
                logs = {
                    "loss": round(work.loss_after(step * size), 4),
                    "learning_rate": 5e-05,
                    "train_samples_per_second": round(speed, 3),
                    "epoch": round(step / 1000, 2),
                }
                print(logs)
                self._call("on_log", logs=logs)
                began = time.perf_counter()
