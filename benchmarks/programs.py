"""Public training programs, unedited: what torch reports of them, and what their sweeps gain.

python benchmarks/programs.py --programs DIR [--python PYTHON] [--only NAME,...] [watch sweep]
                                                    writes benchmarks/results/<device>/programs.json

watch   steps, samples per second and mean loss by the hook, against a meter in the same run
sweep   `init --command` and a three-minute `run`, as a newcomer would do it, and the command it exports

DIR has the repositories below at their commits; `programs_data.py` makes the data that they look for. None
of their code is here.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import Figure, publish

from sweeper.core.job import SCRIPT_RUNNER, Job
from sweeper.core.progress import SilentProgress
from sweeper.core.script import Script
from sweeper.core.template import literal
from sweeper.script.run.start import started
from sweeper.script.run.watch import NO_PARAMETERS

ROOT = Path(__file__).parents[1]
SECONDS = 10.0
MINUTES = 3
MAX_SECONDS = 600
WHOLE_RUNS = 2
REFERENCE = """
import atexit, json, os, time
import sweeper
METER, STEPS = sweeper.meter(), []
atexit.register(lambda: json.dump(STEPS, open(os.environ["REFERENCE"] + str(os.getpid()), "w")))
def step(samples, loss):
    METER.step(samples=samples)
    STEPS.append((time.perf_counter(), samples, loss.item()))
"""


@dataclass(frozen=True)
class Program:
    """A program, and where its training step is.

    Attributes:
        folder: Where it is started, below the folder with the programs.
        after: The line after which a step is counted, if it is known; `file` has it.
        samples, loss: Expressions for the step's samples and loss there.
        steps: The option that counts its steps, if it has one.
    """

    folder: str
    commit: str
    command: str
    file: str = ""
    after: str = ""
    samples: str = ""
    loss: str = "loss"
    steps: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


NUMPY_1 = "../numpy1"
"""Beside the programs, a folder with NumPy 1.26 and what is built for it: two programs fail with NumPy 2."""
MNIST = ("main.py", "optimizer.step()", "len(data)")
PROGRAMS: Mapping[str, Program] = {
    "mnist": Program("examples/mnist", "77f55b9", "python main.py --epochs 1", *MNIST),
    "mnist_rnn": Program("examples/mnist_rnn", "77f55b9", "python main.py --epochs 3", *MNIST),
    "vae": Program("examples/vae", "77f55b9", "python main.py --epochs 3", *MNIST),
    "word_language_model": Program(
        *("examples/word_language_model", "77f55b9", "python main.py --epochs 3"),
        *("main.py", "loss.backward()", "data.size(1)"),
    ),
    "gan": Program(
        *("PyTorch-GAN/implementations/gan", "36d3c77", "python gan.py --n_epochs 1"),
        *("gan.py", "optimizer_D.step()", "imgs.size(0)", "g_loss"),
    ),
    "dlrm": Program(
        "dlrm",
        "090956e",
        "python dlrm_s_pytorch.py --mini-batch-size=128 --data-size=200000 --print-freq=100",
        *("dlrm_s_pytorch.py", "optimizer.step()", "X.size(0)", "E"),
    ),
    "feedforward": Program(
        *("pytorch-tutorial/tutorials/01-basics/feedforward_neural_network", "0500d3d", "python main.py"),
        *("main.py", "optimizer.step()", "len(images)"),
    ),
    "tcn": Program(
        *("TCN/TCN/adding_problem", "2f8c2b8", "python add_test.py --cuda --epochs 3"),
        *("add_test.py", "optimizer.step()", "x.size(0)"),
    ),
    "makemore": Program(
        *("makemore", "988aa59", "python makemore.py -i names.txt -o out --max-steps 4000"),
        *("makemore.py", "optimizer.step()", "X.size(0)"),
        steps="--max-steps",
    ),
    "nanogpt": Program(
        "nanoGPT",
        "3adf61e",
        "python train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20"
        " --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=1200 --dropout=0.0",
        *("train.py", "scaler.step(optimizer)", "X.size(0)"),
        steps="--max_iters",
    ),
    "mingpt": Program(
        *("minGPT", "37baab7", "python projects/adder/adder.py"),
        *("mingpt/trainer.py", "self.optimizer.step()", "x.size(0)", "self.loss"),
        env={"PYTHONPATH": "."},
    ),
    "hogwild": Program(
        *("examples/mnist_hogwild", "77f55b9", "python main.py --epochs 3"),
        *("train.py", "optimizer.step()", "len(data)"),
    ),
    "itransformer": Program(
        "iTransformer",
        "c2426e6",
        "python -u run.py --is_training 1 --root_path ./dataset/ETT-small/ --data_path ETTh1.csv"
        " --model_id ETTh1_96_96 --model iTransformer --data ETTh1 --features M --seq_len 96 --pred_len 96"
        " --e_layers 2 --enc_in 7 --dec_in 7 --c_out 7 --des Exp --d_model 256 --d_ff 256 --itr 1"
        " --train_epochs 3",
        env={"PYTHONPATH": NUMPY_1},
    ),
    "fuxictr": Program(
        "FuxiCTR/model_zoo/DeepFM/DeepFM_torch",
        "0245987",
        "python run_expid.py --config ../../../data/synthetic_csv --expid DeepFM_synthetic",
        env={"PYTHONPATH": "../../.."},
    ),
    "minimalrl": Program("minimalRL", "c8efed8", "python ppo.py", env={"PYTHONPATH": NUMPY_1}),
    "pygat": Program("pyGAT", "3664f2d", "python train.py --epochs 200"),
    "unet": Program(
        *("Pytorch-UNet", "21d7850", "python train.py --epochs 1 --scale 0.5"), env={"WANDB_MODE": "offline"}
    ),
    "lightning": Program(
        *("pytorch-lightning/examples/pytorch/basics", "7f0c343"),
        "python autoencoder.py --trainer.max_epochs=2",
    ),
}


class Totals:
    """Totals of the hook's messages: steps, and the mean loss, each message weighted by its steps."""

    def __init__(self, watched: Any) -> None:
        self._steps: dict[int, int] = {}
        self._sum = self._weight = 0.0
        self._take, watched.take = watched.take, self.take

    def take(self, message: Mapping[str, Any]) -> None:
        """Adds a message."""
        self._take(message)
        if "steps" in message and "part" not in message:
            steps = message["steps"] - self._steps.get(message["pid"], 0)
            self._steps[message["pid"]] = message["steps"]
            if isinstance(message.get("loss"), float):
                self._sum += steps * message["loss"]
                self._weight += steps

    @property
    def loss(self) -> float:
        """The mean loss so far."""
        return self._sum / self._weight if self._weight else float("nan")


def referenced(program: Program, folder: Path) -> dict[str, str]:
    """Returns the files that count the steps of a program with a meter, by path."""
    text = (folder / program.file).read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.strip() == program.after)
    count = f"__import__('reference').step({program.samples}, {program.loss})"
    counted = text.replace(f"{line}\n", f"{line}\n{line[: len(line) - len(line.lstrip())]}{count}\n", 1)
    return {program.file: literal(counted), "reference.py": literal(REFERENCE)}


def watched(name: str, program: Program, folder: Path) -> Iterator[Figure]:
    """Yields how far the hook's reports are from the reference, in percent."""
    if not program.after:
        print(f"{name}: where its step is has not been looked up")
        return
    with tempfile.TemporaryDirectory() as place:
        path = [str(ROOT), program.env.get("PYTHONPATH", "")]
        env = {"REFERENCE": f"{place}/reference", "PYTHONPATH": ":".join(filter(None, [*path, "."]))}
        script = Script(
            command=tuple(map(literal, shlex.split(program.command))),
            files=referenced(program, folder),
            folder=str(folder),
            env=env,
        )
        job = Job(uid=name, folder=place, runner=SCRIPT_RUNNER, script=script, config=NO_PARAMETERS)
        with (
            (Path(place) / "output").open("w", encoding="utf-8") as output,
            contextlib.redirect_stdout(output),
            started(job, SilentProgress()) as run,
        ):
            listener, totals = run.listener, Totals(run.listener.watched)
            deadline = time.perf_counter() + 120
            while run.process.listen(0.1) and time.perf_counter() < deadline:
                among = listener.watched.timeline.stretches
                if among and time.perf_counter() - among[0].end_s > SECONDS:
                    break
            run.process.stop()
            listener.listen()
        files = [json.loads(file.read_text()) for file in Path(place).glob("reference*")]
        truth = [step for file in files for step in file]
        mine, meter = listener.watched.timeline, listener._meter
        late = mine.stretches[len(mine.stretches) // 4 : -1]
        began, ended = late[0].start_s, late[-1].end_s
        # Over wall time, because the meter does not know about evaluations.
        rate = sum(stretch.samples for stretch in late) / (ended - began)
        own = [stretch for stretch in meter.stretches if began < stretch.end_s <= ended]
        by_meter = sum(stretch.samples for stretch in own) / (own[-1].end_s - own[0].start_s)
        if len(files) > 1:
            # A meter counts one process only.
            by_meter = sum(samples for moment, samples, _ in truth if began < moment <= ended) / (
                ended - began
            )
        # The end may come between a step and its count, once in each process.
        steps = (
            len(truth) if abs(listener.watched.steps - len(truth)) <= len(files) else listener.watched.steps
        )
        for what, value, true in (
            ("steps", steps, len(truth)),
            ("samples/s", rate, by_meter),
            ("loss", totals.loss, statistics.fmean(loss for _, _, loss in truth)),
        ):
            off = 100 * abs(value / true - 1)
            print(f"{name}: {what} {value:,.6g}, by the reference {true:,.6g}", file=sys.stderr)
            yield Figure(
                figure=f"{name}: {what} off by",
                value=off,
                low=off,
                high=off,
                bar="<= 1",
                unit="%",
                repeats=1,
            )


def swept(name: str, program: Program, folder: Path) -> Iterator[Figure]:
    """Yields the confirmed ratio of a three-minute sweep, and how long it took."""
    sweeper, home = [sys.executable, "-m", "sweeper"], Path(tempfile.mkdtemp(prefix="sweeper-programs-"))
    env = {**os.environ, **program.env, "PYTHONPATH": f"{ROOT}:{program.env.get('PYTHONPATH', '')}"}
    space = home / "space.yaml"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*sweeper, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=MAX_SECONDS
        )

    try:
        first = run("init", "--command", program.command, "--out", str(space))
        print(first.stdout, first.stderr, space.read_text(encoding="utf-8"), sep="\n", file=sys.stderr)
        began = time.monotonic()
        told = [f"--set=search.minutes={MINUTES}", f"--home={home}", f"--set=name={name}"]
        done = run("run", str(space), *told)
        minutes = (time.monotonic() - began) / 60
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        shown = json.loads(run("show", name, f"--home={home}", "--json").stdout)
        winner = shown["winner"] or {}
        value = winner.get("ratio", 1.0)
        low, high = winner.get("ratio_low", value), winner.get("ratio_high", value)
        yield Figure(figure=f"{name}: winner / its command", value=value, low=low, high=high, repeats=1)
        yield Figure(
            figure=f"{name}: minutes", value=minutes, low=minutes, high=minutes, bar="<= 3.3", repeats=1
        )
        exported = run("export", name, f"--home={home}", "--format", "args").stdout
        print(exported, file=sys.stderr)
        if winner:
            batches = [shown[side]["config"].get("batch_size", 1) for side in ("winner", "baseline")]
            times = batches[0] / batches[1]
            yield whole(name, program, folder, of_same_samples(program, exported, times))
    finally:
        shutil.rmtree(home, ignore_errors=True)


def of_same_samples(program: Program, exported: str, times: float) -> str:
    """Divides the steps of a command by `times`, as the export advises for a run that counts its steps."""
    if not program.steps:
        return exported
    return re.sub(
        rf"({program.steps}[ =])(\d+)",
        lambda match: f"{match[1]}{round(int(match[2]) / times)}",
        exported,
    )


def whole(name: str, program: Program, folder: Path, exported: str) -> Figure:
    """Returns how much longer the program's own command takes than the exported one, both run to the end."""
    env = {**os.environ, **program.env}
    ratios = []
    for _ in range(WHOLE_RUNS):
        seconds = []
        for command in (program.command, exported):
            with tempfile.TemporaryDirectory() as place:
                # In a copy of the repository, whose data may lie beside the program.
                repository = next(path for path in (folder, *folder.parents) if (path / ".git").exists())
                shutil.copytree(repository, f"{place}/copy", ignore=shutil.ignore_patterns(".git"))
                began = time.monotonic()
                subprocess.run(
                    ["bash", "-c", command],
                    cwd=Path(place) / "copy" / folder.relative_to(repository),
                    env=env,
                    check=True,
                    capture_output=True,
                    timeout=MAX_SECONDS,
                )
                seconds.append(time.monotonic() - began)
        print(f"{name}: its command {seconds[0]:.1f} s, the exported one {seconds[1]:.1f} s", file=sys.stderr)
        ratios.append(seconds[0] / seconds[1])
    return Figure(
        figure=f"{name}: whole, its command / the exported one",
        value=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        bar=">= 1",
        repeats=WHOLE_RUNS,
    )


PARTS = {"watch": watched, "sweep": swept}


def main() -> None:
    """Runs the parts asked for on the programs that are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--programs", type=Path, nargs="?", const=Path(), default=Path())
    parser.add_argument("--python", type=Path, help="the folder of the `python` that runs them")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    asked = parser.parse_args()
    # A shell starts what runs in the background without SIGINT, and the programs would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if unknown := {*asked.parts} - {*PARTS}:
        parser.error(f"a part must be one of {', '.join(PARTS)}, but got {', '.join(sorted(unknown))}")
    if asked.python:
        os.environ["PATH"] = f"{asked.python}:{os.environ['PATH']}"
    names = asked.only.split(",") if asked.only else [*PROGRAMS]
    figures: list[Figure] = []
    for part in asked.parts or [*PARTS]:
        for name in names:
            program = PROGRAMS[name]
            folder = asked.programs / program.folder
            if not folder.is_dir():
                print(f"{name}: {folder} is not there")
                continue
            try:
                for figure in PARTS[part](name, program, folder):
                    print(f"{figure.figure}: {figure.value:.4g}", flush=True)
                    figures.append(figure)
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
    publish("programs", figures, "benchmarks/programs.py")


if __name__ == "__main__":
    main()
