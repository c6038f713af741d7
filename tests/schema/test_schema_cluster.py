"""The keys of `execution` that are for clusters: what is refused, in which words, and what reads back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from schema.conftest import WHOLE

from sweeper.core.launchers import traits
from sweeper.errors import UserError
from sweeper.schema import SweepSpec, load, to_yaml
from sweeper.schema.cluster import BatchJob
from sweeper.schema.sections import ExecutionOptions

LOCAL = "{launcher: local, gpus: all, trial_timeout_minutes: 10}"
FULL = """\
{launcher: slurm, gpus: 8, same_gpu: false, trial_timeout_minutes: 30, pass_env: [LAB_ROOM],
 job: {partition: gpu, account: proj1, constraint: a100, time: 1-02:30:15, cores: 6, memory: 15.5 GiB,
       exclusive: true, interface: ib0, python: /opt/py/bin/python, directives: ["--mail-type=FAIL"],
       prologue: [module load cuda, "export A='b: c'"]}}
"""


def read(execution: str, *overrides: str) -> ExecutionOptions:
    """Reads the whole example with another `execution`, whose text begins in line 24, column 12."""
    assert WHOLE.count(LOCAL) == 1
    Path("whole.yaml").write_text(WHOLE.replace(LOCAL, execution))
    return load(Path("whole.yaml"), overrides).execution


def refused(execution: str, *overrides: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        read(execution, *overrides)
    return str(caught.value).splitlines()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


A_TIME = "must be a time such as `4:00:00` (hours, minutes, seconds), or whole minutes"
A_MEMORY = "must be an amount with its unit, such as `16GB`"


@pytest.mark.parametrize(
    ("job", "column", "said"),
    [
        ("{tiem: 60}", 43, "`execution.job.tiem` is not a known key. Did you mean `time`?"),
        ("{exclusiv: true}", 43, "`execution.job.exclusiv` is not a known key. Did you mean `exclusive`?"),
        ("{launcher: slurm}", 43, "`execution.job.launcher` is not a known key. Known keys: partition,"),
        ("{time: 4h}", 49, f"`execution.job.time` {A_TIME}, but got '4h'."),
        ("{time: '5:00'}", 49, f"`execution.job.time` {A_TIME}, but got '5:00'."),
        ("{time: '4:60:00'}", 49, f"`execution.job.time` {A_TIME}, but got '4:60:00'."),
        ("{time: 0}", 49, f"`execution.job.time` {A_TIME}, but got 0."),
        ("{time: 90.5}", 49, f"`execution.job.time` {A_TIME}, but got 90.5."),
        ("{time: true}", 49, f"`execution.job.time` {A_TIME}, but got True."),
        ('{time: "4:00:00\\n"}', 49, f"`execution.job.time` {A_TIME}, but got '4:00:00\\n'."),
        ("{memory: 16}", 51, f"`execution.job.memory` {A_MEMORY}, but got 16."),
        ("{memory: 16 gigs}", 51, f"`execution.job.memory` {A_MEMORY}, but got '16 gigs'."),
        ("{memory: 0GB}", 51, f"`execution.job.memory` {A_MEMORY}, but got '0GB'."),
        ("{cores: 0}", 50, "`execution.job.cores` must be greater than or equal to 1, but got 0."),
        ("{exclusive: 1}", 54, "`execution.job.exclusive` must be a valid boolean, but got 1."),
        ("{python: 3}", 51, "`execution.job.python` must be a valid string, but got 3."),
        ("{directives: -x}", 55, "`execution.job.directives` must be a list of lines, such as `["),
        ('{prologue: [a, "b\\nc"]}', 57, "`execution.job.prologue[1]` must be one line, but got 'b\\nc'."),
        ("3", 42, "`execution.job` must be a mapping of keys to values, but got 3."),
    ],
)  # fmt: skip
def test_what_a_job_cannot_ask_for(job: str, column: int, said: str) -> None:
    (line,) = refused(f"{{launcher: slurm, gpus: 4, job: {job}}}")
    place, _, message = line.partition(": ")
    assert message.startswith(said)
    assert place == f"whole.yaml:24:{column + 2}"


@pytest.mark.parametrize("key", ["partition", "account", "constraint", "interface", "python"])
@pytest.mark.parametrize("end", ["\\n", "\\r"])
def test_a_job_has_no_place_for_a_second_line(key: str, end: str) -> None:
    (line,) = refused(f'{{launcher: slurm, gpus: 4, job: {{{key}: "a{end}rm -rf /"}}}}')
    assert f"`execution.job.{key}` must be " in line
    assert "must be one line" in line or "must be text, but got the character" in line


@pytest.mark.parametrize(
    ("execution", "said"),
    [
        ("{launcher: slurm}", "needs the number of GPUs in `gpus` with a batch system, one job each; with"),
        ("{launcher: sge, gpus: all}", "needs the number of GPUs in `gpus`"),
        ("{launcher: pbs, gpus: [0, 1]}", "needs a number in `gpus` with a cluster, which picks"),
        ("{launcher: ray, gpus: [0]}", "needs a number in `gpus` with a cluster"),
        ("{launcher: local, job: {time: 60}}", "takes `job` only with a batch system as `launcher` (slurm, "),
        ("{launcher: dask, address: 'h:1', job: {}}", "takes `job` only with a batch system"),
        ("{launcher: local, address: 'tcp://h:8786'}", "takes `address` only with `launcher: dask` or `ray`"),
        ("{launcher: dask}", "needs the scheduler's `address: tcp://HOST:8786` with `launcher: dask`"),
        ("{launcher: dask, address: scheduler}", "needs a host and a port in `address`, such as `tcp:"),
        ("{launcher: ray, address: auto}", "needs a host and a port in `address`, such as `HOST:"),
        ("{launcher: ray, tls: {ca_file: a, cert_file: b, key_file: c}}", "takes `tls` only with `launcher:"),
        ("{launcher: dask, address: 'tls://h:1'}", "needs `tls: {ca_file: ..., cert_file: ..., key_file: "),
        ("{gpus: 2, slots: 2}", "takes `slots` only without GPUs (`gpus: 0`): each"),
        ("{launcher: lsf, gpus: 2, job: {time: 11}}", "needs a `job.time` of at least "
         "`trial_timeout_minutes` (10) plus two minutes"),
        ("{launcher: slurm, gpus: 2, trial_timeout_minutes: 59}", "needs a `job.time` of at least"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(execution: str, said: str) -> None:
    (line,) = refused(execution)
    assert line.startswith(f"whole.yaml:24:12: `execution` {said}")
    assert ", but got {" in line


def test_of_a_long_section_what_the_rule_is_about_is_shown() -> None:
    (line,) = refused(
        "{launcher: slurm, gpus: [3], job: {partition: a-long-name-of-a-queue, account: mine, cores: 8}}"
    )
    assert line.endswith("picks the GPUs itself, but got {'gpus': [3]}.")


def test_mistakes_of_a_section_within_a_section_are_each_told() -> None:
    lines = refused("{launcher: dask, address: 'tls://h:8786', tls: {ca_fiel: a}, jobs: {}}")
    assert "`execution.tls.ca_fiel` is not a known key. Did you mean `ca_file`?" in "\n".join(lines)
    assert "`execution.jobs` is not a known key. Did you mean `job`?" in "\n".join(lines)
    assert "`execution.tls.key_file` is required, but it is missing." in "\n".join(lines)
    (line,) = refused("{launcher: slurn, gpus: 2}")
    assert line.endswith("but got 'slurn'. Did you mean `slurm`?")


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("4:00:00", 14_400), ("1-00:00:00", 86_400), ("90", 5_400), ("2-12:30:15", 217_815), ("0:30:00", 1_800)],
)
def test_times(time: str, seconds: float) -> None:
    job = read(f"{{launcher: slurm, gpus: 4, job: {{time: {time}}}}}").job
    assert job is not None
    assert job.time_seconds == seconds


@pytest.mark.parametrize(
    ("memory", "size"), [("16GB", 16e9), ("16 GiB", 16 * 2**30), ("1.5TB", 1.5e12), ("800MB", 8e8)]
)
def test_memory(memory: str, size: float) -> None:
    assert BatchJob(memory=memory).memory_bytes == size


def test_a_key_of_a_job_is_set_from_the_command_line() -> None:
    slurm = "{launcher: slurm, gpus: 4, job: {partition: gpu}}"
    job = read(slurm, "execution.job.time=8:00:00", "execution.job.prologue=[module load cuda]").job
    assert job == BatchJob(partition="gpu", time="8:00:00", prologue=("module load cuda",))
    others = ("execution.launcher=slurm", "execution.gpus=2", "execution.job.time=90")
    assert read("{launcher: local}", *others).job == BatchJob(time="1:30:00")
    (line,) = refused(slurm, "execution.job.time=soon")
    assert f"`execution.job.time` {A_TIME}, but got 'soon'." in line
    (line,) = refused(slurm, "execution.job.tiem=90")
    assert "Did you mean `time`?" in line


@pytest.mark.parametrize(
    "execution",
    [
        FULL,
        LOCAL,
        "{launcher: slurm, gpus: 0, slots: 3}",
        "{launcher: dask, address: 'tls://h:8786', tls: {ca_file: a, cert_file: b, key_file: c}}",
        "{launcher: ray, gpus: 4}",
        "{launcher: ray, address: 'ray://head.cluster:10001'}",
    ],
    ids=range(6),
)
def test_what_is_written_reads_back_equal(execution: str) -> None:
    read(execution)
    spec = load(Path("whole.yaml"))
    assert SweepSpec.from_dict(spec.to_dict()) == spec
    for name, text in (("again.yaml", to_yaml(spec.to_dict())), ("again.json", json.dumps(spec.to_dict()))):
        Path(name).write_text(text)
        assert load(Path(name)) == spec


def test_a_sweep_that_was_stored_before_there_were_clusters_has_the_defaults() -> None:
    read(LOCAL)
    tree = load(Path("whole.yaml")).to_dict()
    for key in ("address", "tls", "job", "same_gpu", "slots"):
        del tree["execution"][key]
    found = SweepSpec.from_dict(tree).execution
    assert (found.address, found.tls, found.job, found.same_gpu, found.slots) == ("", None, None, True, 1)
    assert not found.is_remote


@pytest.mark.parametrize(
    ("execution", "at_once"),
    [
        ("{launcher: slurm, gpus: 8}", 8),
        ("{launcher: slurm, gpus: 0, slots: 3}", 3),
        ("{launcher: ray}", None),
        ("{launcher: ray, gpus: 2}", 2),
        ("{launcher: dask, address: 'tcp://h:1', gpus: 0, slots: 5}", 5),
    ],
)
def test_how_many_at_once(execution: str, at_once: int | None) -> None:
    found = read(execution)
    assert found.is_remote
    assert found.at_once() == at_once
    assert traits(found.launcher).is_batch == ("slurm" in execution)


def test_trials_of_several_gpus_are_fewer_at_once() -> None:
    found = read("{launcher: slurm, gpus: 9}")
    assert [found.at_once(each) for each in (1, 2, 4, 16)] == [9, 4, 2, 1]
