"""What a pipeline's source says of itself, without running it; and which module a name means."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweeper.errors import UserError
from sweeper.scaffold.pipeline_options import PipelineOptions, pipeline_options

SOURCE = '''\
"""Predicts the weather: not well.

More of it.
"""
import no_such_library

raise RuntimeError("this module is not to be run")

DATA = {"source": "synthetic", "path": "", "days": 100}
MODEL: dict = {"hidden_size": 128, "dropout": 0.1}
SPACE = {"model.hidden_size": (64, 128), "data.days": [10, 100]}

def prepare(data):
    """Reads it.

    Args:
        data: `path` (a folder), or without it `days`
            of weather.

    Returns:
        Arrays.
    """

def build(config, prepared):
    pass
'''


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("pipelines/weather").mkdir(parents=True)
    Path("pipelines/weather/__init__.py").write_text(SOURCE)
    return tmp_path


def test_a_pipelines_tables_are_read_and_its_code_is_not_run():
    assert pipeline_options("pipelines.weather") == PipelineOptions(
        module="pipelines.weather",
        summary="Predicts the weather: not well.",
        about_data="`path` (a folder), or without it `days` of weather.",
        data={"source": "synthetic", "path": "", "days": 100},
        model={"hidden_size": 128, "dropout": 0.1},
        space={"model.hidden_size": (64, 128), "data.days": [10, 100]},
    )


def test_defaults_are_found_by_dotted_name():
    offer = pipeline_options("weather")
    assert (offer.default("model.dropout"), offer.default("data.days")) == (0.1, 100)
    assert offer.default("loader.buckets") is None


def test_a_short_name_is_one_of_pipelines_unless_there_is_such_a_module_here(here: Path):
    assert pipeline_options("weather").module == "pipelines.weather"
    (here / "weather.py").write_text(SOURCE)
    assert pipeline_options("weather").module == "weather"


def test_a_module_without_tables_is_a_pipeline_all_the_same(here: Path):
    (here / "bare.py").write_text("from elsewhere import prepare\nbuild = lambda config, prepared: None\n")
    assert pipeline_options("bare") == PipelineOptions(module="bare", data={}, model={}, space={})


@pytest.mark.parametrize(
    ("line", "unread"),
    [
        ("DATA = Path('x')", ("DATA",)),
        ("SPACE = {'model.h': range(3)}", ("SPACE",)),
        ("SPACE = {'model.h': ()}", ("SPACE",)),
        ("SPACE = {'model.h': 3}", ("SPACE",)),
        ("MODEL = {1: 2}", ("MODEL",)),
        ("MODEL = dict(a=1)", ("MODEL",)),
    ],
)
def test_a_table_that_is_no_literal_is_left_out_and_named(here: Path, line: str, unread: tuple[str, ...]):
    (here / "odd.py").write_text(f"{line}\ndef prepare(data): ...\ndef build(config, prepared): ...\n")
    assert pipeline_options("odd").unread == unread


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("waether", "got 'waether'. Did you mean `weather`?"),
        ("pipelines.wether", "Did you mean `pipelines.weather`?"),
        ("pipelines/weather.py", "Did you mean `pipelines.weather`?"),
        ("qqq", "but got 'qqq'."),
        ("../../etc", "but got '../../etc'."),
        ("", "but got ''."),
        ("two words", "but got 'two words'."),
        ("half", "half must define `build`; see docs/pipelines.md."),
        ("neither", "neither must define `prepare` and `build`"),
        ("broken", "broken.py:1: "),
    ],
)
def test_what_is_no_pipeline_is_refused_in_one_line(here: Path, name: str, words: str):
    (here / "half.py").write_text("def prepare(data): ...\n")
    (here / "neither.py").write_text("")
    (here / "two words.py").write_text(SOURCE)
    (here / "broken.py").write_text("def (")
    with pytest.raises(UserError) as caught:
        pipeline_options(name)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
