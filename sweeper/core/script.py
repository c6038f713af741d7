"""Script: a user's training script, its command line, its files and how to read its output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from sweeper.core.template import names_in

FOLDER = "trial.folder"
"""A name that templates may use besides the parameters: where the trial's own files are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What is run in place of a pipeline. All texts are templates (`sweeper.core.template`).

    Attributes:
        command: Program and arguments; no shell looks at them.
        files: Texts of files that are written before it starts, by path below its working directory.
        env: Its own environment variables.
        folder: Where the user started; paths are relative to it.
        workdir: Whether each trial works in a mirror of `folder` whose large files are links, in one
            of copies alone, or `here`, in `folder` itself.
        stop: Whether it is asked to stop once it is measured, or left to come to its end.
        keep: Whether what it wrote is kept.
        samples_per_step: Factors of how many samples a step has, such as `{bs}*{accum}`; empty means
            the trial's own batch.
        samples_per_epoch: Samples of an epoch; 0 where it is not known.
        tokens_per_sample: For output in tokens; 0 where it is not known.
        mlflow: What the steps are that it logs to MLflow with; `off` where it logs nothing of use.
        mlflow_store: An empty store with one run, `mlflow_run`, that each trial gets a copy of.
        patterns: Regular expressions for its output, with named groups (`sweeper.script.patterns`);
            empty means the usual ones.
    """

    command: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    folder: str = "."
    workdir: Literal["link", "copy", "here"] = "link"
    stop: Literal["when_measured", "at_end"] = "when_measured"
    keep: bool = False
    samples_per_step: str = ""
    samples_per_epoch: float = 0.0
    tokens_per_sample: float = 0.0
    mlflow: Literal["off", "steps", "epochs"] = "off"
    mlflow_store: str = ""
    mlflow_run: str = ""
    patterns: tuple[str, ...] = ()

    def names(self) -> Iterator[str]:
        """Yields the parameters that have an effect on it."""
        for text in (*self.command, *self.files.values(), *self.env.values(), self.samples_per_step):
            yield from names_in(text)
