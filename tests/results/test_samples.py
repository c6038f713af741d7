"""What README.md and the pages of docs show of a decision is what sweeper prints.

The sweep of these samples is in stocks-a10.tar.xz: the files that a summary is made from.
"""

from __future__ import annotations

import dataclasses
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from measurements import series
from parts.noop import synthetic

from sweeper.cli.judge import lines as judge_lines
from sweeper.judging.arms import Arm
from sweeper.judging.losses import LossAgreement, LossComparison
from sweeper.judging.speed import Speed, SpeedComparison
from sweeper.judging.verdict import Verdict
from sweeper.results.decision_lines import decision_lines
from sweeper.results.trial_card import trial_card
from sweeper.sweep.folder.catalog import journal_at
from sweeper.sweep.folder.load import load_sweep

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RECORDED = Path(__file__).with_name("stocks-a10.tar.xz")
BLOCK = re.compile(r"^```text\n((?:.*\n)*?)```|((?:^    .*\n)+)", re.MULTILINE)
FIRST = re.compile(r"stocks-a10: |input-bound: the data path|.*\d% interval.* \[")
"""The first line of a sample: of a sweep's decision, of a trial's card, or of any line with an interval."""


def samples(page: str) -> Iterator[list[str]]:
    """The lines of each block of a page from the first one of a decision or a card on."""
    for fenced, indented in BLOCK.findall(page):
        lines = fenced.splitlines() or [line[4:] for line in indented.splitlines()]
        first = next((i for i, line in enumerate(lines) if FIRST.match(line)), None)
        if first is not None:
            yield lines[first:]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What `show` prints of the recorded sweep and of its baseline, and `judge` of two versions."""
    folder = tmp_path_factory.mktemp("recorded")
    with tarfile.open(RECORDED) as archive:
        archive.extractall(folder, filter="data")
    sweep = load_sweep(journal_at(folder / "stocks-a10"))
    return [*decision_lines(sweep.summary), *trial_card(sweep.table.records[0]), *judged()]


def judged() -> Iterator[str]:
    before, after = (
        dataclasses.replace(synthetic(100.0), telemetry={"tree_mem_gib": series(gib)}) for gib in (1.42, 1.4)
    )
    covers = "123 steps, the ends of 2 epochs, 2 evaluations"
    arm = Arm(name="", command=(), folder=ROOT)
    verdict = Verdict(
        arms=(arm, arm),
        speed=SpeedComparison(
            answer=Speed.FASTER, ratio=1.3, low=1.26, high=1.34, before=[before] * 5, after=[after] * 5
        ),
        training=LossComparison(answer=LossAgreement.EQUAL, covers=covers),
    )
    return judge_lines(verdict, None)


def is_printed(line: str, printed: list[str]) -> bool:
    """Whether a line is among what is printed; one that ends with `...` is cut."""
    start, cut, _ = line.partition(", ...")
    return any(known.startswith(start) if cut else known == line for known in printed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_sample_is_what_is_printed(page: Path, printed: list[str]):
    lines = [line for sample in samples(page.read_text(encoding="utf-8")) for line in sample]
    assert [line for line in lines if not is_printed(line, printed)] == []


def test_the_pages_with_samples_are_known(printed: list[str]):
    found = {page.stem for page in PAGES if list(samples(page.read_text(encoding="utf-8")))}
    assert found == {"judge", "verdicts"}
    old = "stocks-a10: 2.67x your baseline, confirmed (95% interval [2.23, 3.19], 7 rounds)."
    assert list(samples(f"```text\n{old}\n```")) == [[old]]
    assert not is_printed(old, printed)
