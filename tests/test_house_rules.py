"""Rules for every module: nothing read is run, durations are monotonic, text has an encoding."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("sweeper", "pipelines")

CODE_FROM_DATA = {
    *("eval", "exec", "torch.load", "torch.save", "joblib.load", "dill.loads", "os.system", "os.popen"),
    *("yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load", "subprocess.getoutput"),
    *("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"),
}
WRITERS = {"pickle.Pickler"}
WALL_STAMPS = {
    # When something was asked for or measured, for a person, a file or MLflow; durations are monotonic.
    "sweeper/production/folder.py",
    "sweeper/production/run.py",
    "sweeper/production/watch.py",
    "sweeper/sweep/job_runner.py",
    "sweeper/sweep/phases/race.py",
    "sweeper/sweep/trial_runner.py",
    "sweeper/tuning/lives.py",
    "sweeper/trainer/ceilings.py",
    "sweeper/trainer/gpu_check.py",
    "sweeper/trainer/measure.py",
    "sweeper/trainer/preflight.py",
    "sweeper/trainer/prepare.py",
    "sweeper/trainer/probe.py",
    "sweeper/trainer/production.py",
    "sweeper/trainer/quality.py",
    "sweeper/trainer/trace.py",
    "sweeper/trainer/dry_step.py",
    "sweeper/worker/keeper.py",
    "sweeper/worker/trial.py",
    # What NVML, MLflow and batch systems stamp with the wall clock, brought together with the monotonic one.
    "sweeper/launch/node.py",
    "sweeper/script/run/mlflow_store.py",
    "sweeper/script/run/start.py",
    "sweeper/script/run/running.py",
    "sweeper/script/run/trial.py",
    "sweeper/telemetry/nvml/processes.py",
    "sweeper/telemetry/log.py",
}
WITH_PATH = ("open", "os.fdopen", "io.open", "gzip.open", "bz2.open", "lzma.open")
OTHER_OPENS = ("os.open", "Image.open", "tarfile.open")
TEXT_METHODS = {"read_text": 0, "write_text": 1}

Found = Iterator[tuple[int, str]]


@cache
def modules() -> dict[str, ast.Module]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a name or an attribute; empty of anything else."""
    if isinstance(node, ast.Attribute):
        above = dotted(node.value)
        return f"{above}.{node.attr}" if above else ""
    return node.id if isinstance(node, ast.Name) else ""


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def imports(tree: ast.AST) -> Found:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
            yield node.lineno, str(node.module)


def code_from_data(tree: ast.AST) -> Found:
    found = list(imports(tree))
    # What is only written is never run.
    writes = {line for line, name in found if name in WRITERS}
    yield from ((line, name) for line, name in found if name in CODE_FROM_DATA and line not in writes)
    for call in calls(tree):
        if dotted(call.func) in CODE_FROM_DATA:
            yield call.lineno, dotted(call.func)
        for keyword in call.keywords:
            given = getattr(keyword.value, "value", True)
            if keyword.arg in ("shell", "allow_pickle") and given is not False:
                yield call.lineno, f"{keyword.arg}={given}"
        if dotted(call.func).endswith(("np.load", "numpy.load", "np.save", "numpy.save")) and not any(
            keyword.arg == "allow_pickle" for keyword in call.keywords
        ):
            yield call.lineno, f"{dotted(call.func)} without allow_pickle=False"


def wall_clock(tree: ast.AST) -> Found:
    for call in calls(tree):
        if dotted(call.func) in ("time.time", "time.time_ns"):
            yield call.lineno, "time.time()"
    yield from ((line, name) for line, name in imports(tree) if name in ("time.time", "time.time_ns"))


def subtracted(tree: ast.AST) -> Found:
    """A duration from wall stamps; the difference of two clocks is how they are brought together."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            names = [dotted(each.func) for each in (node.left, node.right) if isinstance(each, ast.Call)]
            if "time.time" in names and not {"time.perf_counter", "time.monotonic"} & set(names):
                yield node.lineno, "a duration from time.time()"


def guessed_encoding(tree: ast.AST) -> Found:
    for call in calls(tree):
        given = {keyword.arg for keyword in call.keywords}
        name = dotted(call.func)
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if method in TEXT_METHODS:
            if "encoding" not in given and len(call.args) <= TEXT_METHODS[method]:
                yield call.lineno, method
        elif name in WITH_PATH or (method == "open" and name not in OTHER_OPENS):
            at = 1 if name in WITH_PATH else 0
            modes = [*call.args[at : at + 1], *(k.value for k in call.keywords if k.arg == "mode")]
            unsaid = "r" if name in WITH_PATH or name.lower().endswith(("path.open", "file.open")) else ""
            mode = next((m.value for m in modes if isinstance(m, ast.Constant)), "" if modes else unsaid)
            if isinstance(mode, str) and set(mode) <= set("rwxat+") and mode and "encoding" not in given:
                yield call.lineno, f"{name or method}({mode!r})"


def shown_environment(tree: ast.AST) -> Found:
    for call in calls(tree):
        shows = dotted(call.func) in ("print", "repr", "str", "json.dumps") or (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in ("print", "line", "write", "info", "debug", "warning", "error")
        )
        for argument in call.args if shows else ():
            for node in ast.walk(argument):
                if isinstance(node, ast.FormattedValue):
                    node = node.value
                whole = node if isinstance(node, ast.Attribute) else None
                if whole is not None and dotted(whole) == "os.environ" and not _looked_up(argument, whole):
                    yield call.lineno, "the environment is shown"


def _looked_up(within: ast.AST, environ: ast.Attribute) -> bool:
    """Whether only one variable, or a function of our own, is asked of it."""
    for node in ast.walk(within):
        if isinstance(node, ast.Subscript) and node.value is environ:
            return True
        if isinstance(node, ast.Attribute) and node.value is environ and node.attr == "get":
            return True
        if isinstance(node, ast.Call) and environ in node.args and dotted(node.func) != "dict":
            return True
    return False


RULES: dict[str, Callable[[ast.AST], Found]] = {
    "what is read is never run": code_from_data,
    "durations are monotonic": subtracted,
    "files have an encoding": guessed_encoding,
    "the environment is not shown": shown_environment,
}

OFFENCES = {
    "what is read is never run": (
        *("eval(x)", "exec(x)", "import pickle", "from marshal import loads", "import shelve"),
        *("torch.load(p)", "torch.load(p, weights_only=True)", "from torch import load", "yaml.load(t)"),
        *("yaml.unsafe_load(t)", "yaml.full_load(t)", "os.system(c)", "os.popen(c)", "from os import system"),
        *(
            "subprocess.run(c, shell=True)",
            "run(c, shell=flag)",
            "np.load(p)",
            "np.load(p, allow_pickle=True)",
        ),
    ),
    "durations are monotonic": ("time.time() - began", "x = f(end - time.time())"),
    "files have an encoding": (
        *("open(p)", "open(p, 'w')", "open(p, mode='a')", "path.open()", "p.open('r')", "p.read_text()"),
        *("p.write_text(t)", "gzip.open(p, 'rt')", "os.fdopen(d, 'w')"),
    ),
    "the environment is not shown": (
        *("print(os.environ)", "print(f'{os.environ}')", "log.info('%s', dict(os.environ))"),
        *("out.print({**os.environ})", "json.dumps(os.environ)", "observer.line(str(os.environ))"),
    ),
}
ALLOWED = {
    "what is read is never run": (
        *("model.eval()", "ast.literal_eval(x)", "run(c, shell=False)", "np.load(p, allow_pickle=False)"),
        *("json.load(f)", "yaml.parse(t)", "safe_open(p)"),
    ),
    "durations are monotonic": ("time.perf_counter() - began", "offset = time.time() - time.perf_counter()"),
    "files have an encoding": (
        *("open(p, 'rb')", "open(p, 'w', encoding='utf-8')", "p.read_text(encoding='utf-8')"),
        *(
            "p.read_text('utf-8')",
            "os.open(p, flags)",
            "p.write_text(t, 'utf-8')",
            "open(p, 'ab')",
            "publisher.open()",
        ),
    ),
    "the environment is not shown": (
        *("print(os.environ['HOME'])", "print(os.environ.get('HOME'))", "run(env=os.environ)"),
        *("out.print(held_back_line(os.environ, names))",),
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_holds_everywhere(rule: str):
    assert len(modules()) > 150
    assert [
        f"{path}:{line}: {what}" for path, tree in modules().items() for line, what in RULES[rule](tree)
    ] == []


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_finds_what_it_is_for(rule: str):
    for text in OFFENCES[rule]:
        assert list(RULES[rule](ast.parse(text))), text
    for text in ALLOWED[rule]:
        assert not list(RULES[rule](ast.parse(text))), text


def test_the_wall_clock_is_read_only_for_stamps():
    assert list(wall_clock(ast.parse("time.time()")))
    assert list(wall_clock(ast.parse("from time import time")))
    assert {path for path, tree in modules().items() if list(wall_clock(tree))} == WALL_STAMPS


OWN_RECORDS = {"sweeper/sweep/job_runner.py": {"running.handle", "neighbour.num_neighbours"}}
"""Of a class that is private to its module."""


def written_from_outside(tree: ast.AST) -> Found:
    """Attributes that are assigned to on anything but `self`."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) else ():
            for each in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                if isinstance(each, ast.Attribute) and dotted(each.value) != "self":
                    yield node.lineno, dotted(each)
        if isinstance(node, ast.Call) and dotted(node.func) in ("setattr", "object.__setattr__"):
            yield node.lineno, dotted(node.func)


@pytest.mark.parametrize("package", ["results", "sweep", "production", "report", "exports"])
def test_no_object_writes_anothers_attributes(package: str):
    for text in ("a.b = 1", "a.b.c += 1", "a.b, c = 1, 2", "self.a.b = 1", "setattr(a, 'b', 1)"):
        assert list(written_from_outside(ast.parse(text))), text
    for text in ("self.b = 1", "self.a, self.b = 1, 2", "a = b.c"):
        assert not list(written_from_outside(ast.parse(text))), text
    paths = [path for path in modules() if path.startswith(f"sweeper/{package}/")]
    assert len(paths) > 3
    assert [
        f"{path}:{line}: {what}"
        for path in paths
        for line, what in written_from_outside(modules()[path])
        if what not in OWN_RECORDS.get(path, ())
    ] == []
