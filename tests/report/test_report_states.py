"""A report of whatever state a sweep is in: what it says first, and that it never fails."""

from __future__ import annotations

import html as markup
import json
import re
from pathlib import Path

import odd_sweeps as odd
import pytest

from sweeper.report import files, write
from sweeper.report.coverage import coverage_lines
from sweeper.report.decision import costs, facts, warnings
from sweeper.report.page import html
from sweeper.report.report_data import gather
from sweeper.results.words import headline

FIRST = {
    "begun": "The baseline has not been measured.",
    "baseline_only": "Only the baseline has been measured (13 min 08 s per epoch).",
    "baseline_failed": "The baseline did not run (user_error).",
    "all_failed": "Only the baseline met the limits.",
    "no_winner": "No trial is shown to be better than your baseline (13 min 28 s per epoch).",
    "lucky": "No trial is shown to be better than your baseline (13 min 22 s per epoch).",
    "unconfirmed": "Trial 2 is 88.6x as fast as your baseline in a single trial, unconfirmed.",
    "stopped": "Trial 2 is 89x as fast as your baseline, confirmed "
    "(95% interval for a later run [86.6, 91.5], 8 rounds).",
    "stopped_unconfirmed": "Trial 2 is 88.6x as fast as your baseline in a single trial, unconfirmed.",
    "unfinished": "Trial 2 is 88.6x as fast as your baseline in a single trial, unconfirmed.",
    "two_objectives": "Of 2 trials on the Pareto front, trial 2 is picked: 89x as fast as your baseline, "
    "confirmed (95% interval for a later run [86.6, 91.5], 8 rounds).",
}
SAID = {
    "baseline_failed": "The baseline failed: no such file: data.csv. Its output is in ",
    "unconfirmed": "Nothing is confirmed: a single measurement may be luck.",
    "stopped": "The sweep was stopped; the same command continues it.",
    "unfinished": "The sweep is unfinished; the same command continues it.",
    "nothing_known": "The loss was not compared: the winner may train worse than your baseline.",
}


@pytest.mark.parametrize("make", odd.ODD, ids=lambda make: make.__name__)
def test_every_state_gives_a_page_and_a_summary_that_say_first_what_is_decided(
    make: odd.Make, tmp_path: Path
) -> None:
    material = gather(odd.loaded(make(tmp_path)))
    page = html(material)
    first = headline(material.summary, material.decision)
    assert first == FIRST.get(make.__name__, first)
    assert page.index(f"<h1>{markup.escape(first)}</h1>") < page.index("<h2>")
    assert not re.search(r"\b(nan|inf|None)\b", page[page.index("<body>") : page.index("<script")])
    said = list(warnings(material))
    assert any(each.startswith(SAID.get(make.__name__, "")) for each in [*said, ""])
    for each in (*facts(material), *costs(material)):
        assert each.value not in ("–", "")


@pytest.mark.parametrize("make", [odd.begun, odd.nothing_known, odd.hostile], ids=lambda make: make.__name__)
def test_the_files_of_a_sweep_are_in_its_folder(make: odd.Make, tmp_path: Path) -> None:
    sweep = odd.loaded(make(tmp_path))
    written = files(sweep, pytest.fail)
    assert written[0] == sweep.journal.folder / "report.html"
    assert all(path.parent == sweep.journal.folder / "report" for path in written[1:])
    assert all(path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" for path in written[1:])
    assert len(written) == (1 if make is odd.begun else 3 if make is odd.nothing_known else 5)
    assert not list(sweep.journal.folder.rglob("*tmp*"))


def test_a_summary_goes_where_it_is_asked_to(tmp_path: Path) -> None:
    sweep = odd.loaded(odd.finished(tmp_path))
    assert write(sweep, "md", tmp_path / "out.md") == [tmp_path / "out.md"]
    assert write(sweep, "md") == [sweep.journal.folder / "report.md"]
    assert (tmp_path / "out.md").read_text() == (sweep.journal.folder / "report.md").read_text()


def test_what_was_not_tried_names_choices_ranges_and_what_is_left(tmp_path: Path) -> None:
    journal = odd.finished(tmp_path, trials=5)
    for number in (1, 2, 3, 4):
        config = json.loads((journal.trial_folder(number) / "config.json").read_text())
        config["config"]["precision"]["amp"] = "fp32"
        config["config"]["batch_size"] = 100 + number
        config["params"].pop("compile.mode")
        (journal.trial_folder(number) / "config.json").write_text(json.dumps(config))
    odd.no_result(journal)
    tried = {"tried": [{"name": "precision.amp", "value": "fp16", "failed": "no fp16"}]}
    (journal.setup_folder("preflight.json")).write_text(json.dumps(tried))
    (journal.folder / "extension.json").write_text(json.dumps({"trials": 9}))
    said = list(coverage_lines(gather(odd.loaded(journal))))
    assert "`precision.amp` was never set to bf16 or fp16." in said
    assert "`batch_size` was never tried above 104 (the space is 64 to 4,096)." in said
    assert "`compile.mode` was not searched: this machine determines its value." in said
    assert "precision.amp: fp16 removed from the space (no fp16)." in said
    assert "5 of 9 searched trials were not run." in said
