"""`sweeper export`: writes the winner, or another trial, in a format for production."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from sweeper.analysis.pareto import RULES, pick
from sweeper.analysis.summary import Summary
from sweeper.cli.options import Home, Name
from sweeper.cli.screen import STDOUT, check_out, console
from sweeper.core import export_formats
from sweeper.core.export_formats import BUILTIN, FORMATS, YAML, taking
from sweeper.core.home import DEFAULT_HOME
from sweeper.core.job import read_job, read_outcome
from sweeper.core.measurement import Report
from sweeper.core.record import BASELINE
from sweeper.core.template import shown
from sweeper.errors import NothingFeasibleError, UserError, did_you_mean
from sweeper.export import Options, Setting, exported, read, read_map, reads_export, rendered
from sweeper.sweep.store.catalog import cannot_write, find_sweep
from sweeper.sweep.store.load import LoadedSweep, load_sweep
from sweeper.system.files import write_atomic

GIB = 2**30
PATCH = "patch"
"""A format that is not rendered from an export: it is made and proved with the user's own files."""


def export(
    name: Name,
    home: Home = DEFAULT_HOME,
    form: Annotated[
        str,
        typer.Option(
            "--format", help=f"{export_formats.described()}, {PATCH} (a tune's changes in your own files)."
        ),
    ] = export_formats.YAML,
    trial: Annotated[
        int | None, typer.Option("--trial", metavar="N", help="Export this trial instead of the winner.")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            "--rule",
            help="With several objectives: `knee` or `lowest_loss` picks the trial from the front.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Output file, or `-` to print. Default: the sweep's best.yaml; "
            f"{' and '.join(export_formats.printed())} are printed.",
        ),
    ] = None,
    flags: Annotated[
        Path | None,
        typer.Option(
            "--map",
            metavar="FILE.yaml",
            help="With --format args: your own flags, such as `batch_size: --bs`.",
        ),
    ] = None,
) -> None:
    """Export the winning configuration for production.

    The file records where the configuration comes from and what it reached.

    Example: sweeper export stocks-a10 --format json --out best.json
    """
    if form == PATCH:
        if trial is not None or flags is not None or rule is not None:
            raise UserError(f"`--format {PATCH}` takes no `--trial`, `--map` or `--rule`. Leave them out.")
        # Imported late: libcst is slow to import.
        from sweeper.cli.patch_script import write_patch

        write_patch(home, name, out)
        return
    export_command(home, name, form, trial, out, flags, rule)


def export_command(
    home: Path,
    name: str,
    form: str,
    trial: int | None,
    out: Path | None,
    flags: Path | None = None,
    rule: str | None = None,
) -> None:
    """Writes a trial of a sweep, the winner by default, in a format.

    Args:
        flags: A file of the user's own flags, for a format that `takes_map`.
        rule: With several objectives: how to pick a trial from the front.

    Raises:
        UserError: Options contradict each other, or something they name does not exist.
        NothingFeasibleError: There is no trial to export.
        EnvironmentStopError: The file cannot be written.
    """
    traits = FORMATS.get(form)
    if traits.runs_export and out is not None and out.suffix == BUILTIN[YAML].suffix:
        raise UserError(
            f"`--out` of a job script must not end in .yaml, but got {str(out)!r}: the export itself has"
            " that name."
        )
    if flags is not None and not traits.takes_map:
        raise UserError(f"`--map` needs `--format {taking('takes_map')}`, but got `--format {form}`.")
    sweep = load_sweep(find_sweep(home, name))
    summary = sweep.summary
    number = trial if rule is None else _picked(summary, sweep, rule, trial)
    value = exported(summary, sweep.spec, number, _setting(sweep))
    own = sweep.journal.folder
    path = out or (own / f"best{traits.suffix}" if traits.suffix else STDOUT)
    runs = own / "best.yaml" if path == STDOUT else path.parent / f"{path.stem}.yaml"
    has_two = traits.runs_export and reads_export(value)
    if has_two and out is not None and path != STDOUT and runs.exists() and not _is_export(runs):
        raise UserError(
            f"`--out {path}` comes with {str(runs)!r}, but that file exists and is not an export. "
            "Choose another name."
        )
    options = Options(
        flags=read_map(flags) if flags else {},
        runs=str(runs.resolve()),
        reasons=_reasons(summary, sweep, value["provenance"]["trial"]) if traits.gives_reasons else {},
    )
    text = rendered(value, form, options)
    _write(text, path)
    if has_two:
        _write(rendered(value, YAML), runs, quiet=path == STDOUT)


def _is_export(path: Path) -> bool:
    try:
        read(path)
    except UserError:
        return False
    return True


def _write(text: str, path: Path, *, quiet: bool = False) -> None:
    if path == STDOUT:
        sys.stdout.write(text)
        return
    check_out(path)
    try:
        write_atomic(path, text)
    except OSError as error:
        raise cannot_write(error, path.parent) from error
    if not quiet:
        console().print(f"Written to {path}.", soft_wrap=True, markup=False)


def _picked(summary: Summary, sweep: LoadedSweep, rule: str, trial: int | None) -> int:
    """Returns the number of the trial that a rule picks from the front."""
    if trial is not None:
        raise UserError(f"`--rule` picks a trial, but `--trial {trial}` names one. Leave one of them out.")
    if rule not in RULES:
        raise UserError(
            f"`--rule` must be one of {', '.join(RULES)}, but got {rule!r}.{did_you_mean(rule, RULES)}"
        )
    if len(summary.objectives) < 2:
        raise UserError(
            f"`--rule` needs a sweep with several objectives, but `{summary.name}` has one: "
            f"{summary.objectives[0]}. Name a trial with --trial N."
        )
    front = [row.record for row in summary.front]
    known = next(each for each in RULES if each == rule)
    record = pick(front, sweep.spec.objectives, known)
    if record is None:
        raise NothingFeasibleError(f"`{summary.name}` has no trial that `--rule {rule}` could pick.")
    return record.number


def _setting(sweep: LoadedSweep) -> Setting:
    """Returns the data size and the cores that the sweep's trials had."""
    prepared, probed = (read_outcome(sweep.journal.setup_folder(name)) for name in ("prepare", "probe"))
    held = prepared.values.get("bytes") if isinstance(prepared, Report) else None
    usable = probed.values.get("usable_cpus") if isinstance(probed, Report) else None
    return Setting(
        # Unknown for a source, which prepares no data.
        data_gib=held / GIB if held else None,
        # With several slots, each has its share.
        usable_cpus=len(read_job(sweep.journal.trial_folder(BASELINE)).cpus) or usable,
    )


def _reasons(summary: Summary, sweep: LoadedSweep, number: int) -> Mapping[str, str]:
    """Returns what changing each of the winner's values costs, by dotted name."""
    if summary.winner is None or summary.winner.number != number:
        return {}
    found: dict[str, str] = {}
    for each in sweep.sensitivity:
        lost = round(100 * (1 - each.ratio))
        if each.ratio and lost > 0 and each.name not in found:
            how = "measured" if each.how == "measured" else "predicted from all trials"
            found[each.name] = f"{shown(each.value)} instead costs {lost}% of the speed ({how})"
    return found
