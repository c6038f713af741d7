"""The page in a real browser: it draws, asks for nothing, complains of nothing, and works by keyboard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import odd_sweeps as odd
import pytest
from chromium import Page, chromium

from sweeper.report import write

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="no Chromium here: apt-get install chromium"),
]

TAB, ENTER = 9, 13


def texts_of(selector: str) -> str:
    return f"[...document.querySelectorAll({json.dumps(selector)})].map(each => each.textContent)"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Page]:
    with Page(tmp_path / "profile") as page:
        yield page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (path,) = write(odd.loaded(odd.finished(tmp_path_factory.mktemp("home"), trials=40)), "html")
    return path


def test_every_figure_is_drawn_and_nothing_is_asked_for(browser: Page, report: Path) -> None:
    browser.open(report)
    browser.drawn()
    assert browser.problems == []
    assert browser.requests == [report.as_uri()]
    points = "document.querySelectorAll('[data-chart=history] .scatterlayer .point').length"
    assert browser.ask(points) == 40
    bars = "document.querySelectorAll('[data-chart=breakdown] .barlayer .point').length"
    assert browser.ask(bars) == 3 * 4
    ticks = texts_of("[data-chart='effect-loader.kind'] .xtick")
    assert browser.ask(ticks) == ["workers", "resident", "rows"]


@pytest.mark.parametrize("make", [odd.hostile, odd.nothing_known, odd.begun], ids=lambda make: make.__name__)
def test_odd_sweeps_complain_of_nothing_either(browser: Page, make: odd.Make, tmp_path: Path) -> None:
    (path,) = write(odd.loaded(make(tmp_path)), "html")
    browser.open(path)
    if make is not odd.begun:
        browser.drawn()
    assert browser.problems == []
    assert browser.requests == [path.as_uri()]
    assert browser.ask("document.scripts.length") == (1 if make is odd.begun else 3)
    assert browser.ask("document.images.length + document.querySelectorAll('main b').length") == 0
    if make is odd.hostile:
        ticks = browser.ask(texts_of("[data-chart='effect-model.name'] .xtick"))
        assert ticks[0] == odd.HOSTILE[0]
        assert ticks[-1] == odd.HOSTILE[-1]


def test_an_injected_script_would_not_run(browser: Page, report: Path, tmp_path: Path) -> None:
    page = report.read_text(encoding="utf-8").replace("<main>", "<main><script>window.ran = 1</script>")
    (tmp_path / "worse.html").write_text(page.replace("<footer>", "<footer><img src='https://a.example/b'>"))
    browser.open(tmp_path / "worse.html")
    assert browser.ask("window.ran") is None
    assert len([each for each in browser.problems if "Content Security Policy" in each]) == 2


@pytest.mark.parametrize("width", [1280, pytest.param(390, marks=pytest.mark.soak), 360])
def test_the_page_never_scrolls_sideways_and_tables_do_by_keyboard(
    browser: Page, report: Path, width: int
) -> None:
    browser.open(report, width=width)
    browser.drawn()
    assert browser.ask("document.documentElement.scrollWidth") == width
    regions = "[...document.querySelectorAll('.scroll')].every(e => e.tabIndex === 0 && e.ariaLabel)"
    assert browser.ask(regions) is True


def test_figures_follow_the_colour_scheme(browser: Page, report: Path) -> None:
    color = (
        "getComputedStyle(document.querySelector('[data-chart=history] .xtick text')).fill + ' ' + "
        "getComputedStyle(document.body).backgroundColor"
    )
    browser.open(report)
    browser.drawn()
    light = browser.ask(color)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.send("Emulation.setEmulatedMedia", features=dark)
    browser.until(f"({color}) !== '{light}'")
    browser.until(f"({color}) === 'rgb(162, 171, 184) rgb(17, 20, 24)'")
    assert light == "rgb(90, 98, 112) rgb(255, 255, 255)"


def test_the_table_of_trials_sorts_and_filters_by_keyboard(browser: Page, report: Path) -> None:
    browser.open(report)
    browser.drawn()
    column = browser.ask(texts_of("#all-trials thead th")).index("vs baseline")
    browser.ask(f"document.querySelectorAll('#all-trials thead button')[{column}].focus()")
    rows = "[...document.querySelectorAll('#all-trials tbody tr')]"
    order = f"{rows}.map(row => row.cells[{column}].dataset.value ?? null)"
    browser.press("Enter", ENTER, "\r")
    rising = browser.ask(order)
    known = [float(each) for each in rising if each is not None]
    assert known == sorted(known)
    assert rising[-1] is None
    browser.press("Enter", ENTER, "\r")
    falling = browser.ask(order)
    assert [float(each) for each in falling if each is not None] == known[::-1]
    assert falling[-1] is None
    heads = "[...document.querySelectorAll('#all-trials th')].map(e => e.ariaSort).filter(Boolean)"
    assert browser.ask(heads) == ["descending"]
    browser.ask("document.querySelector('.filter input').focus()")
    for letter in "resident bf16":
        browser.press(letter, ord(letter.upper()), letter)
    left = browser.ask(texts_of("#all-trials tbody tr:not([hidden])"))
    assert 0 < len(left) < 40
    assert all("resident" in row and "bf16" in row for row in left)
    assert browser.ask(texts_of(".filter output")) == [f"{len(left)} of 40 trials"]


def test_a_keyboard_and_a_screen_reader_find_their_way(browser: Page, report: Path) -> None:
    browser.open(report)
    browser.press("Tab", TAB)
    assert browser.ask("document.activeElement.textContent") == "Skip to the decision"
    assert browser.ask("document.activeElement.getBoundingClientRect().left >= 0") is True
    headings = "[...document.querySelectorAll('h1, h2')].map(e => e.tagName).join()"
    assert browser.ask(headings) == "H1,H2,H2,H2,H2,H2,H2,H2"
    named = "[...document.querySelectorAll('[data-chart]')].every(e => e.role === 'img' && e.ariaLabel)"
    assert browser.ask(named) is True
    assert browser.ask("document.querySelectorAll('main, nav[aria-label], header, footer').length") == 4
    captions = "[...document.querySelectorAll('table')].every(e => e.caption.textContent)"
    assert browser.ask(captions) is True


def test_without_javascript_every_table_is_there(report: Path, tmp_path: Path) -> None:
    with Page(tmp_path / "profile", scripts=False) as page:
        page.open(report)
        assert page.ask("document.querySelectorAll('#all-trials tbody tr').length") == 40
        assert page.ask("document.querySelector('.filter').offsetHeight") == 0
        assert page.ask("document.querySelector('noscript').textContent") == (
            "Charts and sorting need JavaScript; the tables do not."
        )
