"""Writes the report as one self-contained HTML page, which fetches nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib import resources

from sweeper.report import decision, trial_charts, trial_tables
from sweeper.report.before_after import before_and_after, changes
from sweeper.report.chart import TONES, Chart
from sweeper.report.coverage import coverage_lines
from sweeper.report.html import (
    bullets,
    chart_block,
    commands_block,
    facts_block,
    legend,
    table_block,
)
from sweeper.report.plotly import plotly
from sweeper.report.report_data import ReportData
from sweeper.report.text import Html, as_json, as_lines, element, join
from sweeper.report.timeline_charts import breakdown, timelines
from sweeper.report.winner_charts import learning_curves, race
from sweeper.results import words
from sweeper.schema import to_yaml

SECTIONS: Mapping[str, tuple[str, str]] = {
    "best": ("Best of each kind", "The best of each kind"),
    "effects": ("Settings", "What each setting does"),
    "machine": ("Machine", "What the machine does"),
    "failures": ("Failures", "What did not work"),
    "untried": ("Not tried", "What was not tried"),
    "trials": ("All trials", "All trials"),
    "provenance": ("Provenance", "Where this comes from"),
}
"""The title of each section in the navigation, and its heading."""

_INK = {
    "light": {"ink": "#16191d", "faint": "#5a6270", "line": "#dfe3e8"},
    "dark": {"ink": "#e8eaed", "faint": "#a2abb8", "line": "#2f353e"},
}


def html(m: ReportData) -> str:
    """Returns the page."""
    body, drawn = _body(m)
    figures = {"charts": {chart.key: plotly(chart) for chart in drawn}, "palettes": _palettes()}
    scripts = [_library(), _text("page.js")] if drawn or m.summary.records else []
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_digest, scripts)) or _NONE}",
            "style-src 'unsafe-inline'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    head = join(
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=Html(policy)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{m.summary.name}: {words.headline(m.summary, m.decision)}"),
        element("style", Html(_text("page.css") + _tones())),
    )
    tail = (
        element("script", as_json(figures), type="application/json", id="figures"),
        *(element("script", Html(script)) for script in scripts),
    )
    page = element("html", element("head", head), element("body", body, *tail), lang="en")
    return f"<!doctype html>\n{page}\n"


_NONE = "'none'"


def _body(m: ReportData) -> tuple[Html, list[Chart]]:
    drawn: list[Chart] = []

    def chart(made: Chart | None) -> Html:
        if made is not None:
            drawn.append(made)
        return chart_block(made)

    panels = list(trial_charts.effects(m))
    lines = list(timelines(m))
    steps = breakdown(m)
    every = trial_tables.all_trials(m)
    counted = (f"{count:,} {kind}" for kind, count in m.summary.counts.items())
    contents = {
        "best": join(
            *map(table_block, trial_tables.best_of(m)),
            chart(race(m)),
            chart(learning_curves(m)),
            chart(trial_charts.front(m)),
            _note("Nothing has been measured.") if not m.ended else "",
        ),
        "effects": join(
            chart(trial_charts.history(m)),
            table_block(trial_tables.sensitivity(m)),
            _note("Too few trials to say what mattered.") if not m.sensitivity else "",
            element("h3", "Throughput by setting") if panels else "",
            legend(*panels) if panels else "",
            element("div", *map(chart, panels), class_="charts") if panels else "",
        ),
        "machine": join(
            element("h3", "While it was measured") if lines else "",
            legend(*lines) if lines else "",
            element("div", *map(chart, lines), class_="charts")
            if lines
            else _note("No telemetry was recorded."),
            chart(steps),
            table_block(trial_tables.steps(m)),
            _note(m.spec.traits.no_breakdown) if steps is None else "",
        ),
        "failures": join(
            element("p", f"Searched trials: {', '.join(counted) or 'none'}."),
            chart(trial_charts.outcomes(m)),
            table_block(trial_tables.failures(m)) or _note("Every trial ran and met all limits."),
        ),
        "untried": bullets(coverage_lines(m)) or _note("Nothing to mention."),
        "trials": join(_filter(len(every.rows)), table_block(every, key="all-trials", sortable=True)),
        "provenance": join(
            table_block(trial_tables.provenance(m)),
            element("p", "The full specification. Save it as a file to run the same sweep again."),
            element(
                "details",
                element("summary", "Specification"),
                element("pre", element("code", as_lines(to_yaml(m.spec.to_dict()))), tabindex=0),
            ),
            commands_block([("run the same sweep again", "sweeper run SPECIFICATION.yaml --new")]),
        ),
    }
    sections = (
        element("section", element("h2", SECTIONS[key][1]), content, id=key)
        for key, content in contents.items()
    )
    links = (element("li", element("a", title, href=f"#{key}")) for key, (title, _) in SECTIONS.items())
    page = join(
        element("a", "Skip to the decision", class_="skip", href="#decision"),
        element(
            "header",
            element("p", f"{m.summary.name} · {m.summary.device} · {m.summary.state}", class_="where"),
            element("h1", words.headline(m.summary, m.decision)),
            element("nav", element("ul", *links), aria_label="Sections"),
        ),
        element("main", _decision(m), *sections),
        element("footer", element("p", "A single file: it needs no network and sends nothing.")),
    )
    return page, drawn


def _decision(m: ReportData) -> Html:
    return element(
        "section",
        facts_block(decision.facts(m)),
        element(
            "noscript",
            element("p", "Charts and sorting need JavaScript; the tables do not.", class_="note"),
        ),
        bullets(decision.warnings(m), "warnings", "Warnings"),
        _pair(table_block(changes(m)), table_block(before_and_after(m))),
        table_block(decision.verdicts(m)),
        element("h3", "What it cost"),
        facts_block(decision.costs(m), "facts costs"),
        element("h3", "Next"),
        commands_block(decision.commands(m)),
        id="decision",
        aria_label="The decision",
    )


def _pair(left: Html, right: Html) -> Html:
    """Returns two blocks, side by side if there is room."""
    return element("div", *(element("div", block) for block in (left, right) if block), class_="pair")


def _note(text: str) -> Html:
    return element("p", text, class_="note")


def _filter(count: int) -> Html:
    if count < 2:
        return Html("")
    return element(
        "div",
        element("label", "Filter", element("input", type="search", autocomplete="off", spellcheck="false")),
        element("output", f"{count} of {count} trials", aria_live="polite"),
        class_="filter",
        data_table="all-trials",
        hidden=True,
    )


def _palettes() -> dict[str, dict[str, str]]:
    return {
        scheme: {
            **_INK[scheme],
            **{f"tone:{name}": getattr(tone, scheme) for name, tone in TONES.items()},
        }
        for scheme in ("light", "dark")
    }


def _tones() -> str:
    light = "".join(f".tone-{name}{{color:{tone.light}}}" for name, tone in TONES.items())
    dark = "".join(f".tone-{name}{{color:{tone.dark}}}" for name, tone in TONES.items())
    return f"{light}@media screen and (prefers-color-scheme: dark){{{dark}}}"


def _text(name: str) -> str:
    return (resources.files("sweeper.report") / name).read_text(encoding="utf-8")


def _library() -> str:
    from plotly.offline import get_plotlyjs

    # The library must not end the script element that it is in.
    return str(get_plotlyjs()).replace("</script", "<\\/script")


def _digest(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
