"""Each name of torch's GPU side and of NVML that our code uses is in every release that we support.

None of that code runs on a machine without a GPU: a name that is wrong, new or gone would be met there.
`tests/api_names/record.py` records the names; where a release of torch is added, it is run again.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("sweeper", "pipelines", "benchmarks", "tests")
RECORDED = Path(__file__).parent / "api_names"

Use = tuple[str, str]
"""A dotted name, and `file:line` of its use."""

IN_TEXT = re.compile(r"\btorch(?:\.\w+)+")
NVML = re.compile(r"(?!nvmlReturn$)(?:c_)?nvml[A-Z]\w*|NVML_\w+|NVML\w*Error(?:_\w+)?")
"""Names of pynvml; `nvmlReturn` is a field."""
MAY_LACK = {
    "NVML_FI_DEV_PCIE_COUNT_RX_BYTES": "PcieCounters: in its place there is PcieThroughput",
    "NVML_FI_DEV_PCIE_COUNT_TX_BYTES": "PcieCounters: in its place there is PcieThroughput",
    "nvmlDeviceGetTemperatureV": "in place of nvmlDeviceGetTemperature, once that is gone",
    "nvmlDeviceGetComputeRunningProcesses_v2": "with a driver older than any that torch 2.9 runs on",
}
"""What code asks for that goes on without it."""


@cache
def modules(distribution: str) -> dict[str, dict[str, set[str]]]:
    """Returns for each release its modules, and the names of each."""
    recorded = json.loads((RECORDED / f"{distribution}.json").read_text(encoding="utf-8"))
    found: dict[str, dict[str, set[str]]] = {
        release: {module: set() for module in recorded["modules"]} for release in recorded["releases"]
    }
    for module, groups in recorded["modules"].items():
        for releases, names in groups.items():
            for release in releases.split():
                found[release][module].update(names.split())
    return found


@cache
def missing(name: str) -> list[str]:
    """Returns the releases of torch without `name`; none where its module is not recorded."""
    parts = name.split(".")
    return [release for release, known in modules("torch").items() if not _known(parts, known)]


def _known(parts: list[str], known: dict[str, set[str]]) -> bool:
    """Whether the longest module that it begins with has the name, or any of them as an object's."""
    cuts = [cut for cut in range(len(parts), 0, -1) if ".".join(parts[:cut]) in known]
    if not cuts:
        return True
    for cut in cuts:
        names, rest = known[".".join(parts[:cut])], parts[cut:]
        if cut == cuts[0] and not rest:
            return True
        if any(".".join(rest[:end]) in names for end in range(2, len(rest) + 1)):
            return True
        if cut == cuts[0] and rest[0] in names:
            # Of an object whose attributes are recorded, the attribute decides.
            own = [each for each in names if each.startswith(f"{rest[0]}.")]
            return len(rest) == 1 or not own
    return False


def uses(tree: ast.AST, place: str) -> Iterator[Use]:
    """Yields the dotted names below `torch` that a module's code and its texts of code have."""
    nodes = list(ast.walk(tree))
    aliases = dict(_aliases(nodes))
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        at = f"{place}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            yield from ((f"{node.module}.{each.name}", at) for each in node.names)
        elif isinstance(node, ast.Import):
            yield from ((each.name, at) for each in node.names if each.name.startswith("torch."))
        elif isinstance(node, ast.Attribute) and id(node) not in inner:
            if name := _dotted(node, aliases):
                yield name, at
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from ((found.rstrip("."), at) for found in IN_TEXT.findall(node.value))
        elif isinstance(node, ast.Call) and (name := _asked(node, aliases)):
            yield name, at


def _aliases(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    yield "torch", "torch"
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            yield from ((each.asname or each.name, f"{node.module}.{each.name}") for each in node.names)
        elif isinstance(node, ast.Import):
            yield from ((each.asname, each.name) for each in node.names if each.asname)


def _dotted(node: ast.expr, aliases: dict[str, str]) -> str:
    """Returns `torch.cuda.Event` of such an expression, its first name looked up; empty of others."""
    if isinstance(node, ast.Attribute):
        above = _dotted(node.value, aliases)
        return f"{above}.{node.attr}" if above else ""
    known = aliases.get(node.id, "") if isinstance(node, ast.Name) else ""
    return known if known.split(".")[0] == "torch" else ""


def _asked(node: ast.Call, aliases: dict[str, str]) -> str:
    """Returns the name in `setattr(torch.cuda, "Event", ...)`; one with a default may be missing."""
    function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    wanted = {"setattr": 3, "delattr": 2, "getattr": 2}.get(function)
    if wanted != len(node.args) or not isinstance(node.args[1], ast.Constant):
        return ""
    above = _dotted(node.args[0], aliases)
    return f"{above}.{node.args[1].value}" if above else ""


@cache
def sources() -> dict[str, ast.Module]:
    """Returns the modules that have a name of either distribution: their text says its name."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    return {place: ast.parse(text) for place, text in texts.items() if re.search("torch|nvml", text, re.I)}


def absent(used: Iterable[Use]) -> list[str]:
    """Returns a line for each name that some release lacks."""
    return [f"{at}: {name} is not in torch {', '.join(gone)}" for name, at in used if (gone := missing(name))]


def test_torch_has_each_name_in_every_release():
    own = Path(__file__).name
    used = {place: list(uses(tree, place)) for place, tree in sources().items()}
    assert [line for place, each in used.items() if Path(place).name != own for line in absent(each)] == []
    names = {name for each in used.values() for name, _ in each}
    assert {
        "torch.cuda.set_sync_debug_mode",
        "torch.backends.cudnn.rnn.fp32_precision",
        "torch.cuda.CUDAGraph",
        "torch._inductor.config.compile_threads",
        "torch.profiler.ProfilerActivity.CUDA",
    } < names


def nvml_uses(tree: ast.AST, place: str) -> Iterator[Use]:
    """Yields the names of NVML in code, those among texts that are nothing else; none with a default."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 3]
    optional = {id(call.args[1]) for call in calls if getattr(call.func, "id", "") == "getattr"}
    for node in ast.walk(tree):
        if id(node) in optional:
            continue
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "value", None)
        if isinstance(node, ast.Attribute | ast.Constant) and isinstance(name, str) and NVML.fullmatch(name):
            yield name, f"{place}:{node.lineno}"


def test_nvidia_ml_py_has_each_name_in_every_release():
    found = [
        use
        for place, tree in sources().items()
        if place.startswith(("sweeper", "benchmarks")) or "gpu" in Path(place).name
        for use in nvml_uses(tree, place)
    ]
    releases = {release: known["pynvml"] for release, known in modules("nvidia-ml-py").items()}
    lacking = {
        f"{at}: {name} is not in nvidia-ml-py {release}": name
        for name, at in found
        for release, names in releases.items()
        if name not in names
    }
    assert [line for line, name in lacking.items() if name not in MAY_LACK] == []
    # Those that are tolerated are really used, and really missing somewhere.
    assert set(lacking.values()) == set(MAY_LACK)


def test_all_supported_releases_are_recorded():
    assert list(modules("torch")) == ["2.9", "2.10", "2.11", "2.12", "2.13"]
    assert {release.split(".")[0] for release in modules("nvidia-ml-py")} == {"12", "13"}


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import torch\ntorch.cuda.synchronise()", "torch.cuda.synchronise"),
        ("import torch as t\nt.cuda.Evnt", "torch.cuda.Evnt"),
        ("from torch import cuda\ncuda.nope()", "torch.cuda.nope"),
        ("from torch.cuda import nope", "torch.cuda.nope"),
        ("from torch.profiler import ProfilerActivityy", "torch.profiler.ProfilerActivityy"),
        (
            "import torch\ntorch.backends.cuda.matmul.allow_tf64 = True",
            "torch.backends.cuda.matmul.allow_tf64",
        ),
        ("import torch\ntorch.backends.cudnn.conv.precision", "torch.backends.cudnn.conv.precision"),
        ("import torch\ntorch.backends.cudnn.rnn.precision", "torch.backends.cudnn.rnn.precision"),
        (
            "from torch._inductor import config as c\nc.compile_thread",
            "torch._inductor.config.compile_thread",
        ),
        ("import torch._dynamo\ntorch._dynamo.utils.counter", "torch._dynamo.utils.counter"),
        ("LINE = 'with torch.cuda.graphs_(pool):'", "torch.cuda.graphs_"),
        ("LINE = f'{x}torch.cuda.nope({y})'", "torch.cuda.nope"),
        ("import torch\nmonkeypatch.setattr(torch.cuda, 'nope', 1)", "torch.cuda.nope"),
        ("import torch\ngetattr(torch.cuda, 'nope')", "torch.cuda.nope"),
    ],
)
def test_a_name_that_does_not_exist_is_found(code: str, name: str):
    assert absent(uses(ast.parse(code), "here")) == [
        f"here:{code.count(chr(10)) + 1}: {name} is not in torch 2.9, 2.10, 2.11, 2.12, 2.13"
    ]


@pytest.mark.parametrize(
    ("code", "releases"),
    [
        ("import torch\ntorch.accelerator.get_memory_info()", "2.9"),
        ("import torch\ntorch.backends.cudnn.depthwise_kernel", "2.9, 2.10, 2.11, 2.12"),
        ("import torch\ntorch.backends.cudnn.rnn.CudnnRNNModule", "2.9, 2.10"),
    ],
)
def test_a_name_that_some_releases_lack_is_found(code: str, releases: str):
    (line,) = absent(uses(ast.parse(code), "here"))
    assert line.endswith(f"is not in torch {releases}")


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.cuda.Event(enable_timing=True).record()",
        "import torch\ngetattr(torch.cuda, 'nope', None)",
        "import torch\ntorch.backends.cudnn.rnn.fp32_precision = 'ieee'",
        "import torch\ntorch.cuda.OutOfMemoryError.__name__",
        "cuda.nope()",
    ],
)
def test_a_name_that_exists_is_not_found(code: str):
    assert absent(uses(ast.parse(code), "here")) == []


def test_a_name_of_nvml_that_does_not_exist_is_found():
    code = "nvml.nvmlDeviceGetNope(nvml.NVML_NOPE)\ngetattr(nvml, 'nvmlDeviceGetNope')\n"
    code += "getattr(nvml, 'nvmlWhatever', None)"
    names = [name for name, _ in nvml_uses(ast.parse(code), "here")]
    assert sorted(names) == ["NVML_NOPE", "nvmlDeviceGetNope", "nvmlDeviceGetNope"]
    assert not any("nvmlDeviceGetNope" in known["pynvml"] for known in modules("nvidia-ml-py").values())
