"""Writes the report as one self-contained HTML page, which fetches nothing."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

from sweeper.core.codec import encode
from sweeper.report import decision, trial_charts, trial_tables
from sweeper.report.before_after import before_and_after, changes
from sweeper.report.chart import TONES, Chart, kinds_of_marks
from sweeper.report.coverage import coverage_lines
from sweeper.report.plotly import plotly
from sweeper.report.report_data import ReportData
from sweeper.report.table import Table
from sweeper.report.text import make_printable
from sweeper.report.timeline_charts import breakdown, timelines
from sweeper.report.winner_charts import learning_curves, race
from sweeper.results import words
from sweeper.schema import to_yaml

_INK = {
    "light": {"ink": "#16191d", "faint": "#5a6270", "line": "#dfe3e8"},
    "dark": {"ink": "#e8eaed", "faint": "#a2abb8", "line": "#2f353e"},
}


def html(m: ReportData) -> str:
    """Returns the page."""
    charts, effects, lines = _charts(m), list(trial_charts.effects(m)), list(timelines(m))
    drawn = [chart for chart in (*charts.values(), *effects, *lines) if chart is not None]
    return _render(
        summary=m.summary,
        headline=words.headline(m.summary, m.decision),
        facts=decision.facts(m),
        warnings=list(decision.warnings(m)),
        costs=decision.costs(m),
        commands=decision.commands(m),
        best=trial_tables.best_of(m),
        tables=_tables(m),
        charts=charts,
        effects=effects,
        timelines=lines,
        has_ended=bool(m.ended),
        no_breakdown=m.spec.traits.no_breakdown,
        counted=", ".join(f"{count:,} {kind}" for kind, count in m.summary.counts.items()),
        untried=list(coverage_lines(m)),
        specification=to_yaml(m.spec.to_dict()).splitlines(),
        figures=encode({"charts": {chart.key: plotly(chart) for chart in drawn}, "palettes": _palettes()}),
        css=_text("page.css"),
        scripts=[_library(), _text("page.js")] if drawn or m.summary.records else [],
    )


def _charts(m: ReportData) -> dict[str, Chart | None]:
    return {
        "race": race(m),
        "learning_curves": learning_curves(m),
        "front": trial_charts.front(m),
        "history": trial_charts.history(m),
        "breakdown": breakdown(m),
        "outcomes": trial_charts.outcomes(m),
    }


def _tables(m: ReportData) -> dict[str, Table | None]:
    return {
        "changes": changes(m),
        "before_and_after": before_and_after(m),
        "verdicts": decision.verdicts(m),
        "sensitivity": trial_tables.sensitivity(m),
        "steps": trial_tables.steps(m),
        "failures": trial_tables.failures(m),
        "trials": trial_tables.all_trials(m),
        "provenance": trial_tables.provenance(m),
    }


def _render(**shown: object) -> str:
    """Returns the page; what a template names and is not in `shown` is an error."""
    # Slow to import, and needed only for a page.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("sweeper.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(kinds_of_marks=kinds_of_marks, sha256=_sha256)
    environment.globals.update(tones=TONES)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment.get_template("page.html.j2").render(shown)


def _printable(value: object) -> object:
    """Returns markup as it is, and anything else as printable text, which is then escaped."""
    return value if hasattr(value, "__html__") else make_printable(value)


def _palettes() -> dict[str, dict[str, str]]:
    return {
        scheme: {
            **_INK[scheme],
            **{f"tone:{name}": getattr(tone, scheme) for name, tone in TONES.items()},
        }
        for scheme in ("light", "dark")
    }


def _text(name: str) -> str:
    return (resources.files("sweeper.report") / name).read_text(encoding="utf-8")


def _library() -> str:
    from plotly.offline import get_plotlyjs

    # The library must not end the script element that it is in.
    return str(get_plotlyjs()).replace("</script", "<\\/script")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
