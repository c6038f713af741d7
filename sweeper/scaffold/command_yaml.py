"""Writes a proposed search space as commented YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from sweeper.core.template import shown
from sweeper.scaffold.command_space import Proposal
from sweeper.scaffold.known_options import BATCH, WORKERS, Dimension

UNKNOWN = "DEFAULT"
"""What stands in a comment where a value belongs that only the user knows."""

_PLAIN = re.compile(r"(?:--?|\.{0,2}/)?[A-Za-z_][A-Za-z0-9_./=+@%-]*")
_NOT_TEXT = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})

_HEADER = """\
# How fast it trains is known in one of three ways, the first of them the most exact (docs/scripts.md):
#   three lines in the script:   import sweeper
#                                meter = sweeper.meter()
#                                meter.step(samples=len(batch), loss=loss)     after each training step
#   what it logs to MLflow:      script.mlflow, below
#   what it prints:              tqdm, steps, samples/s, s/it, tokens/s, ...; script.patterns, below"""

_GOALS = """\
# The loss may not become worse than this, where the script tells it (its meter, or what it prints).
# constraints: {val_loss: {max_ratio_to_baseline: 1.02}}
# Of each trial so many windows of so many seconds, once its speed is steady, or after the cap.
measure: {window_seconds: 3, repeats: 3, warmup_cap_seconds: 60}
# At most so many trials and minutes, confirmation included.
search: {trials: 40, minutes: 60, seed: 0}
# The best so many take turns with the baseline, each time in a new process.
confirm: {top: 3, rounds: 8}"""

_WIDTH = 24
_OPTIONS = (
    ("files", "{config.yaml: {template: config.yaml.in}}", "written before it starts, from templates"),
    ("env", "{OMP_NUM_THREADS: '4'}", "environment variables, templates as well"),
    ("workdir", "link", "a mirror of this folder for each trial; copy: all of it; here: the folder itself"),
    ("stop", "when_measured", "at_end: it comes to its end, and its final loss counts"),
    ("samples_per_step", "64", "where batch_size does not say it; also factors: '{batch_size}*2'"),
    ("samples_per_epoch", "50000", "for output in seconds of an epoch"),
    ("tokens_per_sample", "1024", "for output in tokens"),
    ("mlflow", "steps", "or epochs: what it logs to MLflow is read"),
    ("patterns", r"'it (?P<step>\d+) .* (?P<ms_per_step>[\d.]+) msec'", "for output in a form of its own"),
)


def rendered(proposal: Proposal) -> str:
    """Returns a search space that `sweeper.spec.load` reads, and that says what there is to decide."""
    return "\n".join(_lines(proposal)) + "\n"


def _lines(proposal: Proposal) -> Iterator[str]:
    yield f"# A first proposal for: {proposal.source}"
    yield _HEADER
    if all(each.name != BATCH for each in proposal.searched):
        yield "# Its batch size is not known: without the meter, samples per second need"
        yield "# `script.samples_per_step`, below."
    if proposal.undecided:
        yield "# Of what is in comments below, lines of the same name come into use together."
    yield f"name: {_text(proposal.name)}"
    yield "command: ["
    for argument in proposal.arguments:
        mark = "" if argument.in_use else "# "
        remark = "     # in place of the line above" if argument.instead else ""
        yield f"  {mark}{', '.join(map(_text, argument.words))},{remark}"
    yield "  ]"
    yield from _space(proposal)
    if proposal.fix:
        yield "# So many processes train together, each on `batch_size` samples a step."
        yield f"fix: {{{', '.join(f'{name}: {shown(value)}' for name, value in proposal.fix.items())}}}"
    yield from _baseline(proposal)
    yield _GOALS
    if proposal.gpus is not None:
        gpus = ", ".join(str(each) if isinstance(each, int) else _quoted(each) for each in proposal.gpus)
        yield f"execution: {{gpus: {f'[{gpus}]' if gpus else 0}}}"
    yield from _script(proposal)


def _space(proposal: Proposal) -> Iterator[str]:
    yield "space:" if proposal.searched else "space: {}     # without braces, once a line below is in use"
    width = max((len(each.name) for each in proposal.searched), default=0) + 1
    for each in proposal.searched:
        yield f"  {each.name + ':':<{width}} {each}"
    if any(each.name == WORKERS and each.low for each in proposal.searched):
        yield "  # Workers from 1 on: without any, a DataLoader takes no prefetch factor."
    for each in proposal.undecided:
        yield f"  # {each.name}: {each}     # {_why(each)}"


def _why(dimension: Dimension) -> str:
    if dimension.changes_work:
        return "another training: needs the constraint on val_loss"
    return "what it is now is not known: write it into the baseline"


def _baseline(proposal: Proposal) -> Iterator[str]:
    yield "# What all is compared with, and measured first: the command as it was given."
    yield "baseline:" if proposal.searched else "baseline: {}"
    for each in proposal.searched:
        yield f"  {each.name}: {shown(each.value)}"
    for each in proposal.undecided:
        yield f"  # {each.name}: {UNKNOWN if each.value is None else shown(each.value)}"


def _script(proposal: Proposal) -> Iterator[str]:
    """The section `script`, in comments but for the environment that was given."""
    env = ", ".join(f"{_text(name)}: {_quoted(value)}" for name, value in proposal.env.items())
    title, mark = ("script:", "  # ") if env else ("# script:", "#   ")
    yield title
    for name, example, meaning in _OPTIONS:
        if name == "env" and env:
            yield f"  env: {{{env}}}"
        else:
            yield f"{mark}{f'{name}: {example}':<{_WIDTH}}     # {meaning}"


def _text(word: str) -> str:
    """A string in YAML, in quotes only where it needs them."""
    return word if _PLAIN.fullmatch(word) and word.lower() not in _NOT_TEXT else _quoted(word)


def _quoted(word: str) -> str:
    return json.dumps(word, ensure_ascii=False)
