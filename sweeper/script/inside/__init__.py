"""Watches a training from inside the user's process, and neither edits nor prints anything.

`environment` puts a folder in front of the interpreter's path. Its `sitecustomize` waits for torch to
be imported, then loads `hook` under a private name, so that a user's module `sweeper` is not replaced.

Uses only the standard library, and runs on Python 3.8, since a script brings its own interpreter.

Wrapping
    site/sitecustomize   waits for torch, then loads the hook
    hook                 wraps the functions of torch that reveal training
    points               replaces a function, suspends its wrapper, and restores all of them after a failure

Counting
    observer             says what a step is, and reports steps, samples, pauses and losses
    fast_path            counts usual steps in as few instructions as possible
    samples              counts samples from the loader that feeds the training
    model                counts them from the model's input, for training without a loader
    batches              reads the number of samples from a batch
    losses               reads the loss of a step, unscaled and of the whole batch
    pauses               adds up evaluations and other time that is not training
    stages               tells when another optimizer takes over
    shares               times steps in three parts, as the host sees them
    facts                collects what the training uses (the keys: `changes.facts`)
    places               notes the lines that make the loader and the optimizer
    outside              reports what the script does outside of its folder
    step_request         reads the byte that asks for something after a step: to rest, to take steps apart

Recording
    recorder             an observer that writes batches, losses, gradients and updates to a file
    seeding              seeds a run, and cuts its passes short

Taking apart
    diagnoser            changes the batches of steps that do not count any more, part by part
    laps                 measures the seconds of each phase of a step
    lines                samples which line of the user's code runs
    gpu                  measures kernels and copies, and finds lines that wait for a GPU

Messages are datagrams of JSON to the socket that `metering.METER_VARIABLE` names. The hook's have `by`, which
is `hook`, and `pid`; those without `by` are the meter's. In `sweeper.script.run`, `output` tells the two
apart, and passes the hook's to `watched`, which passes parts to `taken_apart`.

    key                  sender              meaning                                              reader
    ────────────────────────────────────────────────────────────────────────────────────────────────────────
    hello                hook                versions of `python` and `torch`, and the `program`  watched
    failed               observer,           why nothing is watched any more                      watched
                         sitecustomize
    change               changes/__init__    `name` of a change, whether it is `applied`, `why`   watched
                                             not, and whether it was `given_up`
    outside              observer            with each message, once it is asked for: what the    watched
                                             script has done outside of its folder so far
    t steps samples      observer            totals as of the clock `t`: steps, samples, seconds  watched,
    paused pausing                           of pauses, and whether one is in progress            output
    loss                 observer            with totals: mean since the last ones; null if it    watched
                                             is not finite
    source               observer            with totals, if new: what counts as step and sample  watched
    facts                observer            with totals: `changes.facts.Facts`                   watched
    stage                observer            with totals: number of the stage, steps before it    watched
    shares               observer            with totals: numbers of `shares.StepShares.message`  watched
    resumed              observer, recorder  with totals: clock at which it went on after its     watched
                                             latest rest, or after its record
    resting              observer            it rests from now on; steps so far                   watched
    recorded             recorder            the record is complete; its number of steps          watched
    part                 diagnoser           name of a part of `diagnoser.PARTS` that has ended,  taken_apart
                                             with its measurements
"""

from __future__ import annotations

import os
from collections.abc import Mapping

HOOK_VARIABLE = "SWEEPER_HOOK"
"""Environment variable that turns the hook on; its value is a mode."""

LOSSES_VARIABLE = "SWEEPER_HOOK_LOSSES"
"""Environment variable; `all` makes every loss count, since the mean of a few is too rough for a limit."""

FOLDER_VARIABLE = "SWEEPER_HOOK_FOLDER"
"""Environment variable that names the trial's folder, in which the script may write."""

OUTSIDE_VARIABLE = "SWEEPER_HOOK_OUTSIDE"
"""Environment variable; if it is set, what the script does outside of its folder is reported, too."""

WATCH, RECORD, EXECUTE = "watch", "record", "execute"
"""Modes: count steps, samples and losses; record a seeded run bit for bit first; or make changes and watch
nothing."""

SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
"""Folder on PYTHONPATH that contains only `sitecustomize`."""


def environment(
    environ: Mapping[str, str], mode: str = WATCH, folder: str = "", *, all_losses: bool = False
) -> dict[str, str]:
    """Returns the variables that bring the hook into Python processes started with `environ`.

    The hook's messages go to the socket that `sweeper.script.metering.METER_VARIABLE` names.

    Args:
        folder: Folder that the script may write to; the working directory by default.
        all_losses: Whether every loss is read, which takes one or two microseconds per step.
    """
    path = environ.get("PYTHONPATH", "")
    searched = f"{SITE}{os.pathsep}{path}" if path else SITE
    variables = {HOOK_VARIABLE: mode, FOLDER_VARIABLE: folder, "PYTHONPATH": searched}
    return {**variables, LOSSES_VARIABLE: "all"} if all_losses else variables
