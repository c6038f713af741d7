"""Foreign text in a report: it stays text, in HTML, in JSON inside a script, and in Markdown."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import odd_sweeps as odd
import pytest

from sweeper.report.markdown import markdown
from sweeper.report.page import html
from sweeper.report.plotly import plotly
from sweeper.report.report_data import gather
from sweeper.report.text import as_markdown, make_printable
from sweeper.report.trial_charts import effects


class Reader(HTMLParser):
    """The elements of a page, and the text that a reader sees."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[str] = []
        self.attributes: set[str] = set()
        self.addresses: list[str] = []
        self.text = ""
        self._hidden = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self._hidden = tag in ("script", "style")
        self.attributes |= {name for name, _ in attrs}
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action")]

    def handle_endtag(self, tag: str) -> None:
        self._hidden = False

    def handle_data(self, data: str) -> None:
        self.text += "" if self._hidden else data


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain – text", "plain – text"),
        ("\x1b[31m", "\\x1b[31m"),
        ("a\u202eb\u2066\u200b", "a\\u202eb\\u2066\\u200b"),
        ("two\nlines\tand", "two lines and"),
        ("\ud800\0", "\\ud800\\x00"),
        (None, "None"),
    ],
)
def test_what_is_not_printable_is_spelled_out(text: object, seen: str) -> None:
    assert make_printable(text) == seen


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a|b", r"a\|b"),
        ("*a* _b_ [c](d) ~e~ $f$", r"\*a\* \_b\_ \[c\](d) \~e\~ \$f\$"),
        ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("@team", "@<!-- -->team"),
        ("use `a|b_c`: now", r"use `a\|b_c`: now"),
        ("one ` alone *", r"one \` alone \*"),
        ("back\\slash\nline", r"back\\slash line"),
    ],
)
def test_markdown_says_just_that(text: str, written: str) -> None:
    assert as_markdown(text) == written


def test_a_hostile_sweep_is_text_all_over_the_page(tmp_path: Path) -> None:
    material = gather(odd.loaded(odd.hostile(tmp_path)))
    page = html(material)
    page.encode("utf-8")
    read = Reader(page)
    assert read.elements.count("script") == 3
    assert "img" not in read.elements
    assert not {name for name in read.attributes if name.startswith("on")}
    assert all(each.startswith("#") for each in read.addresses)
    for hostile in odd.HOSTILE:
        assert re.sub("`", "", make_printable(hostile)) in read.text
    assert "<img src=x onerror=alert(2)> </script><script>alert(3)</script> \\x1b[31mred\\x1b[0m" in read.text
    assert "\\ud800" in read.text
    foreign = page.replace(_library_of(page), "")
    assert not any(character in foreign for character in ("\x1b", "\u202e", "\ud800"))


def _library_of(page: str) -> str:
    return max(re.findall(r"<script>(.*?)</script>", page, re.DOTALL), key=len)


def test_json_in_a_script_cannot_end_it(tmp_path: Path) -> None:
    page = html(gather(odd.loaded(odd.hostile(tmp_path))))
    figures = page[page.index('id="figures">') + 13 : page.index("</script>")]
    assert not {*"<>&"} & {*figures}
    ticks = json.loads(figures)["charts"]["effect-model.name"]["layout"]["xaxis"]["ticktext"]
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in ticks


def test_what_plotly_would_read_as_markup_reaches_it_escaped(tmp_path: Path) -> None:
    material = gather(odd.loaded(odd.hostile(tmp_path)))
    panels = {chart.title: plotly(chart) for chart in effects(material)}
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in panels["model.name"]["layout"]["xaxis"]["ticktext"]
    drawn = json.dumps(list(panels.values()))
    assert "<" not in drawn
    assert "hovertemplate" not in drawn


def test_a_hostile_sweep_breaks_no_table_of_the_markdown(tmp_path: Path) -> None:
    text = markdown(gather(odd.loaded(odd.hostile(tmp_path))))
    assert len(text.splitlines()) < 70
    assert "<script" not in text
    assert "@somebody" not in text
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(blocks) >= 4
    assert sum(block.count("\n") for block in blocks) == len(widths)
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, block
