"""Writes a proposed search space as commented YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from sweeper.core.template import spell
from sweeper.scaffold.command_space import Proposal
from sweeper.scaffold.known_options import BATCH, WORKERS, Dimension

UNKNOWN = "DEFAULT"
"""Placeholder in a comment for a value that only the user knows."""

_PLAIN = re.compile(r"(?:--?|\.{0,2}/)?[A-Za-z_][A-Za-z0-9_./=+@%-]*")
_NOT_TEXT = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})

_HEADER = """\
# torch reports the speed and the loss from inside the script, without edits (docs/watch.md).
# Where it cannot, they come from sweeper.meter() in the script, from what it logs to MLflow, or from
# what it prints (docs/scripts.md): script.mlflow and script.patterns, below."""

_GOALS = """\
# Number and length of each trial's windows, which begin once its speed is steady, or after the cap.
measure: {window_seconds: 2, repeats: 3, warmup_cap_seconds: 60}
# Limits of the search; the minutes include confirmation.
search: {trials: 40, minutes: 60, seed: 0}
# The best trials take turns with the baseline, each time in a new process.
confirm: {top: 3, rounds: 4}"""

_WIDTH = 24
_OPTIONS = (
    ("files", "{config.yaml: {template: config.yaml.in}}", "written from templates before it starts"),
    ("env", "{OMP_NUM_THREADS: '4'}", "environment variables; they may have templates"),
    ("changes", "{loader: gathered}", "changes that are made to it at run time (docs/tuning.md)"),
    ("workdir", "link", "each trial gets links to this folder; copy: a full copy; here: the folder itself"),
    ("unprotected", "[checkpoints]", "files and folders of yours that it may write to"),
    ("stop", "when_measured", "at_end: it runs until it ends, and its final loss counts"),
    ("samples_per_step", "64", "if it is not batch_size; factors work too: '{batch_size}*2'"),
    ("samples_per_epoch", "50000", "for output in seconds per epoch"),
    ("tokens_per_sample", "1024", "for output in tokens"),
    ("mlflow", "steps", "or epochs: reads what it logs to MLflow"),
    ("patterns", r"'it (?P<step>\d+) .* (?P<ms_per_step>[\d.]+) msec'", "for output in any other form"),
)


def yaml_of(proposal: Proposal) -> str:
    """Returns a search space that `sweeper.schema.load` reads, with comments on what to decide."""
    return "\n".join(_lines(proposal)) + "\n"


def _lines(proposal: Proposal) -> Iterator[str]:
    yield f"# A first proposal for: {proposal.source}"
    yield _HEADER
    if proposal.look and proposal.look.facts:
        seen = ", ".join(f"{name} {spell(value)}" for name, value in proposal.look.facts.items())
        yield f"# Seen while it trained: {seen}."
    elif all(dimension.name != BATCH for dimension in proposal.searched):
        yield "# Its batch size is unknown. For a speed from its output, set `script.samples_per_step` below."
    if proposal.undecided:
        yield "# To use a name that is commented out below, uncomment all of its lines."
    yield f"name: {_text(proposal.name)}"
    yield "command: ["
    for argument in proposal.arguments:
        mark = "" if argument.in_use else "# "
        remark = "     # instead of the line above" if argument.instead else ""
        yield f"  {mark}{', '.join(map(_text, argument.words))},{remark}"
    yield "  ]"
    yield from _space(proposal)
    if proposal.fix:
        yield "# Number of processes that train together, each on `batch_size` samples per step."
        yield f"fix: {{{', '.join(f'{name}: {spell(value)}' for name, value in proposal.fix.items())}}}"
    yield from _baseline(proposal)
    mark = "" if proposal.trains_differently and proposal.look and proposal.look.has_loss else "# "
    yield "# Limit on the loss after the same number of samples."
    yield f"{mark}constraints: {{val_loss: {{max_ratio_to_baseline: 1.02}}}}"
    yield _GOALS
    if proposal.gpus is not None:
        gpus = ", ".join(str(gpu) if isinstance(gpu, int) else _quote(gpu) for gpu in proposal.gpus)
        yield f"execution: {{gpus: {f'[{gpus}]' if gpus else 0}}}"
    yield from _script(proposal)


def _space(proposal: Proposal) -> Iterator[str]:
    yield "space:" if proposal.searched else "space: {}     # remove the braces to use a line below"
    width = max((len(dimension.name) for dimension in proposal.searched), default=0) + 1
    for dimension in proposal.searched:
        yield f"  {dimension.name + ':':<{width}} {dimension}"
    if any(dimension.name == WORKERS and dimension.low for dimension in proposal.searched):
        yield "  # At least 1 worker: without any, a DataLoader takes no prefetch factor."
    for dimension in proposal.undecided:
        yield f"  # {dimension.name}: {dimension}     # {_why(dimension)}"


def _why(dimension: Dimension) -> str:
    if dimension.changes_work:
        return "changes what is trained: needs the constraint on val_loss"
    return "its current value is unknown: write it into the baseline"


def _baseline(proposal: Proposal) -> Iterator[str]:
    yield "# The reference for all trials, measured first: the command as it was given."
    yield "baseline:" if proposal.searched else "baseline: {}"
    for dimension in proposal.searched:
        yield f"  {dimension.name}: {spell(dimension.value)}"
    for dimension in proposal.undecided:
        yield f"  # {dimension.name}: {UNKNOWN if dimension.value is None else spell(dimension.value)}"


def _script(proposal: Proposal) -> Iterator[str]:
    """Yields the section `script`, in comments except for the given environment."""
    env = proposal.env
    title, mark = ("script:", "  # ") if env else ("# script:", "#   ")
    yield title
    for name, example, meaning in _OPTIONS:
        if name == "env" and env:
            yield "  env:"
            yield from (f"    {_text(name)}: {_quote(value)}" for name, value in env.items())
        else:
            yield f"{mark}{f'{name}: {example}':<{_WIDTH}}     # {meaning}"


def _text(word: str) -> str:
    """Returns a string as YAML, quoted only if needed."""
    return word if _PLAIN.fullmatch(word) and word.lower() not in _NOT_TEXT else _quote(word)


def _quote(word: str) -> str:
    return json.dumps(word, ensure_ascii=False)
