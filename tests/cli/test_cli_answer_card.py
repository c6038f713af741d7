"""The answer of a tune as a card: in a terminal, as pictures, and as Markdown."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from sweeper.cli import answer_card
from sweeper.cli.answer_card import Card, card_of, check_files
from sweeper.core.record import BASELINE
from sweeper.errors import UserError
from sweeper.results.numbers.confirmation import Ratio

CARD = Card(
    headline="3.9x as fast [3.6, 4.3]",
    rows=(
        ("speed", "12,345/s, was 3,165/s"),
        (
            "changes",
            "loader gathered, optimizer fused, precision bf16, layout channels_last, threads one, more",
        ),
        ("on", "a machine, 2 cores | $x_1$"),
    ),
    command="sweeper tune -- python train.py",
)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_terminal_of_any_width_shows_all_of_it(width: int) -> None:
    file = io.StringIO()
    Console(file=file, width=width).print(CARD.panel())
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    shown = " ".join(re.sub("[│╭╮╰╯─]", " ", file.getvalue()).split())
    for word in ("3.9x as fast", "12,345/s", "channels_last,", "2 cores", "train.py"):
        assert word in shown


def test_it_is_a_picture_of_either_kind(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, start in (("card.svg", b"<svg"), ("card.png", b"\x89PNG")):
        CARD.write(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    assert "3.9x&#160;as&#160;fast" in (tmp_path / "card.svg").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["card.png", "card.svg"]


def test_its_markdown_is_a_table() -> None:
    lines = CARD.markdown().splitlines()
    assert lines[0] == "### 3.9x as fast [3.6, 4.3]"
    assert r"| on | a machine, 2 cores \| $x_1$ |" in lines
    assert lines[-1] == "    sweeper tune -- python train.py"


@pytest.mark.parametrize(
    ("cards", "markdown", "why"),
    [
        (["card.gif"], None, "must be a file that ends with .svg or .png, but got 'card.gif'"),
        (["missing/card.svg"], None, "must be a file in a folder that exists"),
        ([], "missing/card.md", "`--export-markdown` must be a file"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cards: list[str], markdown: str | None, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=re.escape(why)):
        check_files([Path(name) for name in cards], Path(markdown) if markdown else None)
    assert not [*tmp_path.iterdir()]


def test_without_matplotlib_a_png_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweeper.cli.answer_card.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install matplotlib"):
        check_files([Path("card.png")], None)


@pytest.mark.parametrize(
    ("is_provisional", "headline", "measured"),
    [
        (False, "3.78x as fast", "95% interval for a later run [1.72, 8.34], 1 round"),
        (True, "3.78x as fast so far", "95% interval [2.16, 6.64], 1 round, not confirmed by new processes"),
    ],
)
def test_what_no_new_processes_have_confirmed_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, is_provisional: bool, headline: str, measured: str
) -> None:
    ratio = Ratio(
        trial=1,
        ratio=3.78,
        low=1.72,
        high=8.34,
        throughput=9.0,
        rounds=(9.0,),
        sitting_low=2.16,
        sitting_high=6.64,
    )
    record = SimpleNamespace(measurement=None)
    sweep = SimpleNamespace(
        journal=SimpleNamespace(trial_folder=lambda number: Path(str(number))),
        table=SimpleNamespace(records={BASELINE: record, 1: record}),
        about={"device": "a machine"},
        confirmation=SimpleNamespace(winner=1, ratios=(ratio,), is_provisional=is_provisional),
        confirmations=dict,
    )
    monkeypatch.setattr(answer_card, "command_of", lambda folder: ["python", "train.py"])
    monkeypatch.setattr(answer_card.verification, "read", lambda record: None)
    result = SimpleNamespace(ran=SimpleNamespace(sweep=sweep), searched=None, fault="", bound="")
    card = card_of(cast(Any, result))
    assert card is not None
    assert card.headline == headline
    assert dict(card.rows)["measured"] == f"in turns with the script as it is: {measured}"
