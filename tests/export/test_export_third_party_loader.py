"""What an export says of a loader from another distribution."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from exports import export_of
from turbo import install_turbo

from sweeper.core.codec import decode
from sweeper.core.config import TrialConfig
from sweeper.errors import UserError
from sweeper.export import read, rendered

TURBO = TrialConfig().replace({"loader.kind": "turbo", "batch_size": 100, "loader.num_workers": 3})


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(install_turbo(tmp_path / "site")))


def test_it_is_exported_for_sweeper_itself(installed, tmp_path):
    value = export_of(TURBO.flatten())
    path = tmp_path / "best.yaml"
    path.write_text(rendered(value, "yaml"))
    assert decode(TrialConfig, read(path)["config"]) == TURBO.canonical()
    args = rendered(value, "args").split()
    assert args[args.index("--loader") + 1] == "turbo"
    assert "--num-workers" not in args


def test_an_export_is_not_run_where_the_distribution_is_gone(tmp_path):
    path = tmp_path / "best.json"
    path.write_text(json.dumps(export_of(TURBO.flatten())))
    with pytest.raises(UserError, match="must be one of rows, workers, resident, stream, but got 'turbo'"):
        read(path)


REFUSED = (
    "`--format python` needs a loader that a plain PyTorch script can imitate, but `loader.kind: turbo` "
    "(turbo-loader 1.0) provides no lines for such a script. Use `--format yaml`, or another trial with "
    "--trial N."
)


def test_lines_of_a_plain_script_are_refused_unless_it_gives_them(installed):
    with pytest.raises(UserError) as caught:
        rendered(export_of(TURBO.flatten()), "python")
    assert str(caught.value) == REFUSED
    text = rendered(export_of({**TURBO.flatten(), "loader.kind": "nitro"}), "python")
    assert "\nimport turbo\n" in text
    assert "\nbatches = turbo.batches(dataset, 100, device)\n" in text
    assert "# loader.kind nitro: it is turbo." in text
