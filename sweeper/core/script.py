"""Defines Script: a user's training script, its command line, its files and how to read its output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sweeper.core.config import Scalar
from sweeper.core.template import names_in, render
from sweeper.script.changes import is_original

FOLDER = "trial.folder"
"""A name that templates may use besides the parameters: the folder of the trial's own files."""

UNPROTECTED = "SWEEPER_UNPROTECTED"
"""Environment variable with places of the user's that scripts may write to, a line each."""

WATCH = "script.watch"
"""Key of a measurement's note on why a script's steps were not watched."""

OBSERVED: Mapping[str, str] = {
    "batch_size": "batch_size",
    "accumulate_steps": "accumulate_steps",
    "loader.num_workers": "num_workers",
    "loader.prefetch_factor": "prefetch_factor",
    "loader.pin_memory": "pin_memory",
    "loader.persistent_workers": "persistent_workers",
    "precision.amp": "precision",
    "amp": "precision",
    "optimizer.fused": "fused",
    "compile": "compiled",
}
"""The key in torch's report of a training (`Measurement.observed`) for each parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script that runs instead of a pipeline. All texts are templates (`sweeper.core.template`).

    Attributes:
        command: Program and arguments, run without a shell.
        files: Texts of files that are written before it starts, by path below its working directory.
        env: Its additional environment variables.
        changes: Values of the changes made to it at run time (`sweeper.script.changes`), by name.
        folder: The folder in which the user started it; paths are relative to it.
        workdir: Whether each trial works in a mirror of `folder` whose large files are links, in a
            full copy, or `here`, in `folder` itself.
        unprotected: Files and folders of the user's that it may write to, by path from `folder`.
        stop: Whether it is asked to stop once it is measured, or runs to completion.
        keep: Whether the files it wrote are kept.
        watch: Whether torch reports its steps from inside its processes (`sweeper.script.inside`).
        samples_per_step: Factors of the samples per step, such as `{bs}*{accum}`; empty for the
            trial's own batch.
        samples_per_epoch: Samples per epoch; 0 if unknown.
        tokens_per_sample: Tokens per sample, for output in tokens; 0 if unknown.
        mlflow: The unit of the steps it logs to MLflow; `off` if it logs nothing useful.
        mlflow_store: An empty store with one run, `mlflow_run`; each trial gets a copy of it.
        patterns: Regular expressions for its output, with named groups (`sweeper.script.run.patterns`);
            empty for the usual ones.
    """

    command: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, str] = field(default_factory=dict)
    folder: str = "."
    workdir: Literal["link", "copy", "here"] = "link"
    unprotected: tuple[str, ...] = ()
    stop: Literal["when_measured", "at_end"] = "when_measured"
    keep: bool = False
    watch: bool = True
    samples_per_step: str = ""
    samples_per_epoch: float = 0.0
    tokens_per_sample: float = 0.0
    mlflow: Literal["off", "steps", "epochs"] = "off"
    mlflow_store: str = ""
    mlflow_run: str = ""
    patterns: tuple[str, ...] = ()

    def variables(self, values: Mapping[str, Scalar]) -> dict[str, str]:
        """Returns its additional environment variables; one whose text is empty for `values` is not set."""
        variables = {name: render(text, values) for name, text in self.env.items()}
        return {name: text for name, text in variables.items() if text or not self.env[name]}

    def changes_for(self, values: Mapping[str, Scalar]) -> dict[str, str]:
        """Returns the changes made to it at run time; a value that is empty or original makes none."""
        rendered = {name: render(text, values) for name, text in self.changes.items()}
        return {name: value for name, value in rendered.items() if value and not is_original(name, value)}

    def names(self) -> Iterator[str]:
        """Yields the parameters that have an effect on it."""
        templates = (*self.command, *self.files.values(), *self.env.values(), *self.changes.values())
        for text in (*templates, self.samples_per_step):
            yield from names_in(text)
