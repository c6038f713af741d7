"""Figures as PNG: whatever the texts, and without matplotlib's global state."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import odd_sweeps as odd
import pytest
from matplotlib.image import imread

from sweeper.errors import UserError
from sweeper.report import files, write
from sweeper.report.chart import TONES
from sweeper.report.png import pngs
from sweeper.report.report_data import gather


def test_the_main_figures_are_drawn_in_their_colours_whatever_they_are_called(tmp_path: Path) -> None:
    names = ["数据", "$\\bad{$", "_hidden", "x" * 200]
    space = {
        "batch_size": {"type": "int", "low": 64, "high": 4096, "log": True},
        "loader.kind": {"type": "categorical", "choices": ["workers", "resident"]},
        "model.name": {"type": "categorical", "choices": names},
    }
    base = {"loader.kind": "rows", "batch_size": 64, "model.name": names[1]}
    journal = odd.finished(tmp_path, changes={"space": space, "baseline": base})
    written = pngs(gather(odd.loaded(journal)), tmp_path / "out" / "figures")
    assert [path.name for path in written] == [
        "throughput.png",
        "effects.png",
        "timelines.png",
        "breakdown.png",
    ]
    for path in written:
        image = imread(path)
        assert 200 < image.shape[0] < 1200
        assert 800 < image.shape[1] < 1500
        accent = tuple(int(TONES["good"].light[i : i + 2], 16) / 255 for i in (1, 3, 5))
        assert (abs(image[..., :3] - accent).max(axis=-1) < 0.01).sum() > 30, path


def test_without_matplotlib_the_page_is_written_and_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    sweep = odd.loaded(odd.finished(tmp_path))
    line = (
        "PNG figures need matplotlib, which is not installed."
        " Install it with `pip install 'sweeper-torch[figures]'`."
    )
    with pytest.raises(UserError) as caught:
        write(sweep, "png")
    assert str(caught.value) == line
    said: list[str] = []
    assert [path.name for path in files(sweep, said.append)] == ["report.html"]
    assert said == [f"The report has no figures beside it: {line}"]
    assert not (sweep.journal.folder / "report").exists()


def test_a_report_draws_without_pyplot_and_opens_no_library_before_it_is_asked(tmp_path: Path) -> None:
    code = (
        "import sys; import sweeper.report; "
        "early = [n for n in ('matplotlib', 'plotly', 'torch', 'mlflow', 'pandas') if n in sys.modules]; "
        "from matplotlib.figure import Figure; Figure().savefig(sys.argv[1]); "
        "print(early, 'matplotlib.pyplot' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x.png")], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[] False\n"
