"""Hands a trial over to production: its export, in a format and a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sweeper.core.export_formats import BUILTIN, FORMATS, YAML, formats_with
from sweeper.core.job import read_outcome
from sweeper.core.measurement import Report
from sweeper.core.template import spell
from sweeper.core.units import GIB
from sweeper.errors import NothingFeasibleError, UserError, did_you_mean
from sweeper.exports import Options, Setting, make_export, read, read_map, reads_export, render_export
from sweeper.results.numbers.pareto import RULES, pick
from sweeper.results.numbers.summary import Summary
from sweeper.sweep.folder.catalog import find_sweep
from sweeper.sweep.folder.load import LoadedSweep, load_sweep
from sweeper.system.files import STDOUT, check_out, write_atomic, writing


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """A trial in a format, with the files that it is for.

    Attributes:
        text: The trial in that format.
        path: File for the text; `STDOUT` for none.
        export_path: File for the export that the text reads when it runs; None if it reads none.
        export: That export.
    """

    text: str
    path: Path
    export_path: Path | None = None
    export: str = ""

    def write(self) -> list[Path]:
        """Writes the files, and returns them; none if the text is for standard output.

        Raises:
            UserError: A file cannot be there.
            EnvironmentStopError: A file cannot be written.
        """
        if self.path != STDOUT:
            _write(self.text, self.path)
        if self.export_path is not None:
            _write(self.export, self.export_path)
        if self.path == STDOUT:
            return []
        return [self.path] if self.export_path is None else [self.path, self.export_path]


def hand_over(
    home: Path,
    name: str,
    form: str = YAML,
    *,
    trial: int | None = None,
    out: Path | None = None,
    flags: Path | None = None,
    rule: str | None = None,
) -> Handover:
    """Returns a trial of a sweep, the winner by default, in a format.

    Args:
        flags: A file of the user's own flags, for a format that `takes_map`.
        rule: With several objectives: how to pick a trial from the front.

    Raises:
        UserError: Options contradict each other, or something they name does not exist.
        NothingFeasibleError: There is no trial to export.
    """
    traits = FORMATS.get(form)
    if traits.runs_export and out is not None and out.suffix == BUILTIN[YAML].suffix:
        raise UserError(
            f"`--out` of a job script must not end in .yaml, but got {str(out)!r}: the export itself has"
            " that name."
        )
    if flags is not None and not traits.takes_map:
        raise UserError(f"`--map` needs `--format {formats_with('takes_map')}`, but got `--format {form}`.")
    sweep = load_sweep(find_sweep(home, name))
    summary = sweep.summary
    number = trial if rule is None else _pick_trial(summary, sweep, rule, trial)
    value = make_export(summary, sweep.spec, number, _setting(sweep))
    folder = sweep.journal.folder
    path = out or (folder / f"best{traits.suffix}" if traits.suffix else STDOUT)
    export_path = folder / "best.yaml" if path == STDOUT else path.parent / f"{path.stem}.yaml"
    has_two = traits.runs_export and reads_export(value)
    is_named = out is not None and path != STDOUT
    if has_two and is_named and export_path.exists() and not _is_export(export_path):
        raise UserError(
            f"`--out {path}` comes with {str(export_path)!r}, but that file exists and is not an export. "
            "Choose another name."
        )
    options = Options(
        flags=read_map(flags) if flags else {},
        runs=str(export_path.resolve()),
        reasons=_reasons(summary, sweep, value["provenance"]["trial"]) if traits.gives_reasons else {},
    )
    text = render_export(value, form, options)
    if not has_two:
        return Handover(text=text, path=path)
    return Handover(text=text, path=path, export_path=export_path, export=render_export(value, YAML))


def _is_export(path: Path) -> bool:
    try:
        read(path)
    except UserError:
        return False
    return True


def _write(text: str, path: Path) -> None:
    check_out(path)
    with writing(path.parent):
        write_atomic(path, text)


def _pick_trial(summary: Summary, sweep: LoadedSweep, rule: str, trial: int | None) -> int:
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
    record = pick(front, sweep.spec.objectives, next(name for name in RULES if name == rule))
    if record is None:
        raise NothingFeasibleError(f"`{summary.name}` has no trial that `--rule {rule}` could pick.")
    return record.number


def _setting(sweep: LoadedSweep) -> Setting:
    """Returns the data size and the cores that the sweep's trials had."""
    prepared, probed = (read_outcome(sweep.journal.setup_folder(name)) for name in ("prepare", "probe"))
    held = prepared.values.get("bytes") if isinstance(prepared, Report) else None
    usable = probed.values.get("usable_cpus") if isinstance(probed, Report) else None
    # A sweep that has just begun has no trial.
    cpus = next((entry.job.cpus for entry in sweep.journal.trials()), ())
    return Setting(
        # Unknown for a source, which prepares no data.
        data_gib=held / GIB if held else None,
        # With several slots, each has its share.
        usable_cpus=len(cpus) or usable,
    )


def _reasons(summary: Summary, sweep: LoadedSweep, number: int) -> Mapping[str, str]:
    """Returns what changing each of the winner's values costs, by dotted name."""
    if summary.winner is None or summary.winner.number != number:
        return {}
    reasons: dict[str, str] = {}
    for effect in sweep.sensitivity:
        lost = round(100 * (1 - effect.ratio))
        if effect.ratio and lost > 0 and effect.name not in reasons:
            how = "measured" if effect.how == "measured" else "predicted from all trials"
            reasons[effect.name] = f"{spell(effect.value)} instead costs {lost}% of the speed ({how})"
    return reasons
