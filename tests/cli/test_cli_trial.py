"""Everything about one trial: its card, result, times, statistics, and charts of the whole of it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from measurements import measurement, record_of

from sweeper.cli.trial_view import trial_lines
from sweeper.core.config import Scalar
from sweeper.core.job import Job, write_job
from sweeper.core.measurement import Failure, FailureKind, Measurement, Quality, Stats
from sweeper.core.record import TrialRecord
from sweeper.results.trial_line import trial_line

MORE = {
    "repeated_windows": 2,
    "steady": False,
    "compile_seconds": 0.15,
    "compile_cache": "cold",
    "telemetry_missing": {"gpu_power_w": "Not Supported", "nvml": "a reading did not come back in time"},
    "quality": Quality(
        key="k", samples=60_000, seconds=2.5, train_loss=0.5, val_loss=0.25, metrics={"accuracy": 0.9123456}
    ),
}


def a_trial() -> Measurement:
    found = measurement(data=0.5, fits_device=True, windows={"foreign_cpu_seconds": 1.5}, more=MORE)
    first, second = found.windows
    return dataclasses.replace(
        found,
        windows=(first, dataclasses.replace(second, disturbances=("other processes took cores",))),
        telemetry={
            "gpu_util_pct": Stats(mean=93.456, p50=95.0, p95=99.0),
            "cpu_util_pct": Stats(mean=41.0, p50=40.0, p95=50.5),
        },
    )


def shown(found: object, folder: Path, **traced: object) -> list[str]:
    record: TrialRecord = dataclasses.replace(record_of(found, loader__kind="rows"), folder=str(folder))
    return list(trial_lines(record, "007 rows", "search", traced))


def after(lines: list[str], title: str) -> list[str]:
    """The lines below a title, down to the next empty one."""
    at = lines.index(title) + 1
    return lines[at : lines.index("", at)]


def series(folder: Path, **columns: list[float]) -> None:
    (folder / "series").mkdir()
    for name, values in columns.items():
        np.save(folder / "series" / f"{name}.npy", np.array(values, dtype=float))


def test_a_trial_in_full(tmp_path: Path):
    lines = shown(a_trial(), tmp_path)
    assert lines[0] == "007 rows (search)"
    assert "  loader.kind: rows" in lines
    card = lines.index("input-bound: waiting for data takes 50% of the step")
    assert lines[card + 2].endswith("◄ the cause")
    assert "next: `loader.kind: resident`" in lines
    assert "  throughput: 6400 samples/s" in after(lines, "Result")
    assert "  cpu_util_pct_p95: 50.5 %" in after(lines, "Result")
    assert after(lines, "Times") == [
        "  start-up 500 ms, first step 200 ms (compiling 150 ms, cache cold)",
        "  warm-up 1.5 s, 100 steps, and the step time was still unsteady",
        "  window of 3 s: 6,400/s, 1.00 cores busy (0.50 by others)",
        "  window of 3 s: 6,400/s, 1.00 cores busy (0.50 by others)  disturbed: other processes took cores",
        "  disturbed windows, measured again: 2",
        "  loss after 60,000 samples: 2.5 s",
    ]
    places = [card, *(lines.index(title) for title in ("Result", "Times"))]
    assert places == sorted(places)
    assert f"All files are in {tmp_path}." in lines


@pytest.mark.parametrize(
    ("seconds", "how", "said"),
    [
        (31.25, "extrapolated", "  time_to_loss_s: 31.25 s (extrapolated)"),
        (31.25, "measured", "  time_to_loss_s: 31.25 s (measured)"),
        (math.inf, None, "  time_to_loss_s: never; its loss does not reach the baseline's"),
        (None, None, None),
    ],
)
def test_a_time_to_the_loss_says_how_it_is_known(seconds: float | None, how: str | None, said: str | None):
    record = dataclasses.replace(
        record_of(a_trial()),
        derived={} if seconds is None else {"time_to_loss_s": seconds},
        notes={} if how is None else {"time_to_loss_how": how},
    )
    lines = list(trial_lines(record, "007 rows", "search", {}))
    assert [line for line in after(lines, "Result") if "time_to_loss_s" in line] == ([said] if said else [])


def test_statistics_have_their_columns_and_say_what_is_missing(tmp_path: Path):
    lines = shown(a_trial(), tmp_path)
    (title,) = (line for line in lines if line.startswith("Inside the windows"))
    below = after(lines, title)
    assert title.split()[-4:] == ["windows", "mean", "median", "p95"]
    assert below[0] == "  cpu_util_pct                      41        40      50.5"
    assert below[1].startswith("  gpu_util_pct                   93.46        95        99")
    assert [line.index(" 50.5") + 5 for line in below[:1]] == [len(title)]
    assert below[2:] == ["  gpu_power_w: Not Supported", "  nvml: a reading did not come back in time"]


def test_operations_of_a_traced_trial(tmp_path: Path):
    operations = {"aten::mm": 1.25, "aten::add_": 0.5}
    lines = shown(a_trial(), tmp_path, operations=operations)
    (title,) = (line for line in lines if line.startswith("Most expensive operations"))
    assert [line.split() for line in after(lines, title)] == [["aten::mm", "1.250"], ["aten::add_", "0.500"]]
    assert not any(line.startswith("Most expensive operations") for line in shown(a_trial(), tmp_path))


AGAIN = {"activation_checkpointing": True}


@pytest.mark.parametrize(
    ("changes", "effective", "how", "most", "precision", "share"),
    [
        ({}, {}, "", "100", "its precision", "MFU 13%"),
        # The throughput is that of both devices; the trace ran on one.
        ({"device__count": 2}, {}, "", "200", "its precision", "MFU 6.4%"),
        ({"precision__amp": "fp8"}, {}, "", "100", "bf16", "MFU 13%"),
        (AGAIN, {}, " with recomputation", "100", "its precision", "HFU 13%"),
        (AGAIN, {"activation_checkpointing": "false: x"}, "", "100", "its precision", "MFU 13%"),
    ],
)
def test_a_traced_trial_has_its_share_of_the_devices_arithmetic(
    changes: dict[str, Scalar], effective: dict[str, str], how: str, most: str, precision: str, share: str
):
    record = record_of(dataclasses.replace(a_trial(), effective=effective), **changes)
    traced = {"operations": {}, "flops_per_sample": 2e6, "matmul_flops": 1e11}
    (line,) = (e for e in trial_lines(record, "007 rows", "search", traced) if "FLOP per sample" in e)
    assert line == (
        f"  2 MFLOP per sample{how}: 12.8 GFLOP/s of the {most} GFLOP/s that matrix products reach here in "
        f"{precision} ({share})"
    )


def test_a_cold_cache_is_said(tmp_path: Path):
    said = "  cold cache: its data was read from the disk"
    for is_cold in (True, False):
        write_job(tmp_path, Job(uid="t", cold_cache=is_cold))
        assert (said in shown(a_trial(), tmp_path)) == is_cold


def test_a_chart_is_of_the_whole_trial_a_block_of_time_a_character(tmp_path: Path):
    count = 144
    ramp = [100 * i / (count - 1) for i in range(count)]
    series(tmp_path, time_s=[0.5 * i for i in range(count)], cpu_util_pct=ramp)
    lines = shown(a_trial(), tmp_path)
    at = lines.index("CPU over 1 min 11 s, 0 to 100%")
    bars = lines[at + 1][2:]
    assert len(bars) == 72
    assert bars == "".join(sorted(bars))
    assert set(bars) == set(" ▁▂▃▄▅▆▇█")
    assert not any(line.startswith("GPU") for line in lines)


def test_a_chart_has_gaps_where_nothing_was_read_and_keeps_to_its_scale(tmp_path: Path):
    series(
        tmp_path,
        time_s=[0.0, 1.0, 2.0, 3.0, 10.0],
        gpu_sm_active_pct=[0.0, math.nan, -5.0, 130.0, 50.0],
        gpu_util_pct=[math.nan, math.nan, math.nan, 50.0, math.nan],
    )
    lines = shown(a_trial(), tmp_path)
    at = lines.index("GPU, SMs active over 10 s, 0 to 100%")
    # Two readings in the first of four blocks, one in the second and in the last.
    assert lines[at + 1] == "   █·▄"
    # Of a single reading there is no chart.
    assert not any("NVML's utilisation over" in line for line in lines)


@pytest.mark.parametrize("torn", ["time_s", "cpu_util_pct"])
def test_a_torn_series_costs_its_chart_alone(tmp_path: Path, torn: str):
    series(tmp_path, time_s=[0.0, 1.0], cpu_util_pct=[1.0, 2.0])
    path = tmp_path / "series" / f"{torn}.npy"
    path.write_bytes(path.read_bytes()[:90])
    lines = shown(a_trial(), tmp_path)
    assert not any(line.startswith("CPU over") for line in lines)
    assert f"All files are in {tmp_path}." in lines


def test_files_are_named_where_they_are(tmp_path: Path):
    (tmp_path / "telemetry.log").touch()
    (tmp_path / "worker.log").touch()
    said = shown(a_trial(), tmp_path)
    below = said[said.index(f"All files are in {tmp_path}.") + 1 :]
    assert [line.split()[0] for line in below] == ["telemetry.log", "worker.log"]


def test_a_failure_has_neither_card_nor_times(tmp_path: Path):
    failure = Failure(
        kind=FailureKind.OOM, message="CUDA out of memory", stage="warmup", seconds=4.5, detail="a\nb"
    )
    lines = shown(failure, tmp_path)
    assert "oom in stage `warmup` after 4.5 s: CUDA out of memory" in lines
    assert "a\nb" in lines
    assert not {"Result", "Times"} & set(lines)
    assert not any("bound" in line or "◄" in line for line in lines)


def test_in_one_line_it_has_the_first_of_what_its_pipeline_tells():
    quality = dataclasses.replace(MORE["quality"], metrics={"accuracy": 0.9123456, "auc": 0.75})
    line = trial_line(dataclasses.replace(record_of(a_trial()), quality=quality), "007 rows", 2.0)
    assert "loss 0.25    accuracy 0.9123  " in line
    assert "auc" not in line
