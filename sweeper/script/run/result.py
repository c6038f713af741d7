"""Makes the parts of a script's result from its reports: its windows, its loss, and what was left out."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence

from sweeper.core.job import Job
from sweeper.core.measurement import Quality, RunParts, Window
from sweeper.core.script import WATCH, Script
from sweeper.core.units import GIB
from sweeper.core.workload import script_of
from sweeper.script.run.output import Listener
from sweeper.script.run.sandbox import Sandbox
from sweeper.script.run.timeline import Stretch, Timeline
from sweeper.system.process import peak_bytes
from sweeper.trainer.timing.conditions import Conditions, window_between
from sweeper.trainer.timing.windows import WindowSet


def run_parts(
    timeline: Timeline,
    between: Mapping[str, float],
    started_s: float,
    recorded: tuple[int, Mapping[str, float]] = (0, {}),
) -> RunParts | None:
    """Returns what a script has done so far; None before its second step.

    Args:
        between: What was done between its steps (`sweeper.script.inside.between_steps`).
        started_s: Time at which its process was started.
        recorded: Number of first stretches that were recorded, and `between` at their end. They do not count,
            since a record takes longer than steps.
    """
    num_recorded, earlier = recorded
    stretches = timeline.stretches[num_recorded:]
    if not (stretches and between and timeline.began_s is not None):
        return None
    passing = {**between, **{name: between[name] - earlier[name] for name in earlier if name != "batches"}}
    others_s = passing["pass_s"] + passing["save_s"] - passing["paused_save_s"]
    paused_s = sum(stretch.paused_seconds for stretch in stretches)
    return RunParts(
        startup_s=max(0.0, timeline.began_s - started_s),
        steps_s=max(0.0, sum(stretch.seconds for stretch in stretches) - others_s),
        num_steps=sum(stretch.steps for stretch in stretches),
        pass_starts_s=passing["pass_s"],
        num_passes=int(passing["passes"]),
        evaluations_s=max(0.0, paused_s - passing["paused_save_s"]),
        checkpoints_s=passing["save_s"],
        num_checkpoints=int(passing["saves"]),
        pass_batches=int(passing["batches"]),
    )


def window_of(stretches: Sequence[Stretch], before: Conditions, after: Conditions) -> Window:
    """Returns consecutive stretches as one window.

    Args:
        before: The counters at its start.
        after: The counters at its end.
    """
    return window_between(
        before,
        after,
        stretches[0].start_s,
        sum(stretch.seconds for stretch in stretches),
        sum(stretch.steps for stretch in stretches),
        round(sum(stretch.samples for stretch in stretches)),
    )


def quality(job: Job, listener: Listener) -> Quality | None:
    """Returns the loss after the plan's samples; None if the script does not report one.

    This is the last validation loss if the script ran to its end. A script stopped earlier may or
    may not have validated, so its training loss after the same number of samples counts.
    """
    script = script_of(job)
    plan, losses = job.plan, listener.losses()
    validation = listener.val_losses()
    at_end = script.stop == "at_end"
    at = losses.samples if at_end else plan.quality_samples
    if not plan.quality_samples or losses.samples < at:
        return None
    train, val = losses.loss_at(at), validation.val_loss_at(at)
    loss = val if train is None or (at_end and val is not None) else train
    if loss is None:
        return None
    return Quality(
        key=f"{job.config.quality_key()}-{plan.quality_samples}",
        samples=round(at),
        seconds=0.0,
        train_loss=loss if train is None else train,
        val_loss=loss,
        of="validation" if loss is val else "training",
    )


def ineffective_settings(script: Script, listener: Listener, sandbox: Sandbox) -> dict[str, str]:
    """Returns, by setting, why something was not as the trial requested."""
    reasons: dict[str, str] = {}
    if places := sandbox.describe_refused():
        reasons["script.unprotected"] = f"the script could not write to {places}"
    if doubt := listener.disagreement():
        reasons["speed"] = doubt
    watched = listener.watched
    reasons.update({name: why for name, why in watched.changes.items() if why})
    if watched.failures:
        reasons[WATCH] = f"torch was no longer watched ({watched.failures[0]})"
    elif script.watch and not watched.programs:
        reasons[WATCH] = "torch was not seen in its processes, so the speed is what the script itself reports"
    return reasons


def exclusions(
    stretches: Sequence[Stretch],
    timed: WindowSet,
    num_recorded: int,
    num_earlier: int,
    num_warm: int,
    *,
    is_short: bool,
) -> Iterator[str]:
    """Yields descriptions of the parts of a run that do not count.

    Args:
        num_recorded: Number of first stretches that were recorded.
        num_earlier: Number of first stretches that are of an earlier stage of the training.
        num_warm: Number of stretches before the windows.
        is_short: Whether the script ended before a window was full.
    """
    recorded, earlier = stretches[:num_recorded], stretches[num_recorded:num_earlier]
    warm = stretches[max(num_recorded, num_earlier) : num_warm]
    if is_short:
        seconds = stretches[-1].end_s - stretches[0].end_s
        yield (
            f"all but {seconds:.3g} s: the script ended before a window was full. Let it train for longer"
            " (more steps or epochs): sweeper ends it as soon as it is measured"
        )
    if recorded:
        yield f"the first {sum(stretch.steps for stretch in recorded)} steps, which were recorded"
    if earlier:
        seconds = sum(stretch.seconds for stretch in earlier)
        speed = sum(stretch.samples for stretch in earlier) / seconds
        yield f"an earlier stage of the training, with another optimizer ({seconds:.3g} s, {speed:,.0f}/s)"
    if warm:
        steps = sum(stretch.steps for stretch in warm)
        count = f"{steps} steps" if steps else f"{len(warm)} reports"
        yield f"the first {count} as warm-up ({sum(stretch.seconds for stretch in warm):.3g} s)"
    end = timed.kept[-1].start_s + timed.kept[-1].seconds
    pauses = [e.paused_seconds for e in stretches[num_warm:] if e.paused_seconds > 0 and e.start_s <= end]
    if pauses:
        yield f"{len(pauses)} pauses for evaluation ({sum(pauses):.3g} s)"


def peak_gib(pids: Iterable[int]) -> float:
    """Returns the peak resident set of the largest of some processes, and of descendants that have exited."""
    exited = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return round(max((exited, *map(peak_bytes, pids))) / GIB, 4)
