"""Writes a verdict as Markdown for a pull request, with what the latest commits were judged."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from sweeper.judging.history import JudgedCommit, slower_since
from sweeper.judging.verdict import Verdict, words
from sweeper.results.formatting import interval, times
from sweeper.results.words import interval_text

SHORT = 9
"""Letters of a commit that are shown."""


def comment(verdict: Verdict, history: Sequence[JudgedCommit]) -> str:
    """Returns a verdict as Markdown.

    Args:
        history: What the latest commits were judged, this one included; empty if it is not kept.
    """
    return "\n".join(_lines(verdict, history)) + "\n"


def _lines(verdict: Verdict, history: Sequence[JudgedCommit]) -> Iterator[str]:
    speed, arm = verdict.speed, verdict.arms[1]
    yield f"### {speed.answer}: {times(speed.ratio)}"
    yield ""
    yield "| `sweeper judge` | |"
    yield "|---|---|"
    yield f"| losses | {_cell(words(verdict.training))} |"
    measured = interval_text(speed.low, speed.high, len(speed.before), of="", what="start")
    yield f"| measured | in turns: {measured} |"
    yield f"| command | `{_cell(shlex.join(arm.command))}` |"
    if (first := slower_since(history)) is not None:
        yield ""
        yield f"**Slower since `{_short(first.commit)}`** ({times(first.ratio)})."
    if len(history) > 1:
        yield ""
        yield f"<details><summary>The last {len(history)} commits</summary>"
        yield ""
        yield "| commit | compared with | speed | from to | losses |"
        yield "|---|---|---|---|---|"
        for one in reversed(history):
            yield (
                f"| `{_short(one.commit)}` | `{_short(one.base)}` | {one.speed}, {times(one.ratio)}"
                f" | {interval(one.low, one.high)} | {one.losses} |"
            )
        yield ""
        yield "</details>"


def _short(commit: str) -> str:
    return commit[:SHORT] + "+" * commit.endswith("+")


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
