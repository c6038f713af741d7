"""Records which names each release of torch and nvidia-ml-py has, for tests/test_api_names.py.

    pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_28_aarch64 \
        torch==2.14.0 --dest wheels
    pip download --no-deps nvidia-ml-py==13.615.71 --dest wheels
    python tests/api_names/record.py wheels/*.whl

The wheels are read and not installed. So any platform's will do: those for aarch64 are a third of the size of
CUDA's, and their Python files are the same. A release that is already recorded is recorded again.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

FOLDER = Path(__file__).parent
MODULES = {
    "torch": (
        *("torch.cuda", "torch.cuda.amp", "torch.cuda.graphs", "torch.cuda.memory", "torch.cuda.nvtx"),
        *("torch.accelerator", "torch.amp", "torch.version", "torch.compiler"),
        *("torch.backends", "torch.backends.cuda", "torch.backends.cudnn", "torch.backends.cudnn.rnn"),
        *("torch.autograd", "torch.autograd.profiler", "torch.profiler", "torch.distributed"),
        *("torch._dynamo", "torch._dynamo.config", "torch._dynamo.exc", "torch._dynamo.utils"),
        *("torch._inductor", "torch._inductor.config", "torch._inductor.exc"),
    ),
    "nvidia-ml-py": ("pynvml",),
}
"""Those with names that only a GPU's code uses, or that move between releases."""
WANTED = {"pynvml": re.compile(r"(?!.*(vgpu|nvlink|nvswitch|grid|confcompute|conf_compute))(c_)?nvml", re.I)}
"""The names that are worth recording; all, if it is not said."""

EVERY = re.compile("")

Names = dict[str, set[str]]
"""The releases that have a name, by name."""


class Wheel:
    """The modules of a wheel, read from their source.

    Attributes:
        name: Of the distribution; `version`: `2.13` of torch, the whole of the other's.
    """

    def __init__(self, path: Path) -> None:
        distribution, version, *_ = path.name.split("-")
        self.name = distribution.replace("_", "-")
        self.version = ".".join(version.split("+")[0].split(".")[:2])
        self._archive = zipfile.ZipFile(path)
        self._files = set(self._archive.namelist())

    def _tree(self, module: str) -> ast.Module | None:
        path = module.replace(".", "/")
        for name in (f"{path}.py", f"{path}/__init__.py", f"{path}.pyi", f"{path}/__init__.pyi"):
            if name in self._files:
                return ast.parse(self._archive.read(name))
        return None

    def names(self, module: str) -> set[str]:
        """Returns a module's names and submodules; `name.attribute` of objects made in it."""
        tree = self._tree(module)
        if tree is None:
            return set()
        path = module.replace(".", "/") + "/"
        below = {name[len(path) :] for name in self._files if name.startswith(path)}
        found = {name.partition("/")[0].removesuffix(".py") for name in below if name.endswith(".py")}
        classes = self._classes(module, tree)
        for node in statements(tree):
            if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
                source = self._source(module, node)
                found |= exported(self._tree(source), self.names(source))
            found |= bound(node)
            if class_of(node) in classes and isinstance(node, ast.Assign):
                # As PyTorch does where a module has properties.
                replaced = "sys.modules" in ast.unparse(node.targets[0])
                prefix = "" if replaced else f"{ast.unparse(node.targets[0])}."
                found |= {prefix + name for name in members(class_of(node), classes)}
        return {name for name in found if "__" not in name and WANTED.get(module, EVERY).match(name)}

    def _classes(self, module: str, tree: ast.Module) -> dict[str, ast.ClassDef]:
        """Returns the classes of a module, and those that it imports from a module beside it."""
        found = {node.name: node for node in statements(tree) if isinstance(node, ast.ClassDef)}
        for node in statements(tree):
            if isinstance(node, ast.ImportFrom) and (node.level or str(node.module).startswith("torch.")):
                names = {each.name for each in node.names}
                other = self._tree(self._source(module, node))
                for each in statements(other) if other else ():
                    if isinstance(each, ast.ClassDef) and each.name in names:
                        found.setdefault(each.name, each)
        return found

    def _source(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return str(node.module)
        package = module if f"{module.replace('.', '/')}/__init__.py" in self._files else parent(module)
        for _ in range(node.level - 1):
            package = parent(package)
        return f"{package}.{node.module}"


def parent(module: str) -> str:
    return module.rpartition(".")[0]


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yields the statements that run when a module is imported, in whatever branch they are."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from statements(node)


def bound(node: ast.stmt) -> set[str]:
    """Returns the names that a statement binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(each.asname or each.name).partition(".")[0] for each in node.names} - {"*"}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {
        each.id for target in targets if target for each in ast.walk(target) if isinstance(each, ast.Name)
    }


def class_of(node: ast.stmt) -> str:
    """Returns the class that an assignment makes an object of."""
    value = getattr(node, "value", None)
    return ast.unparse(value.func) if isinstance(value, ast.Call) else ""


def members(name: str, classes: Mapping[str, ast.ClassDef]) -> set[str]:
    """Returns the attributes of a class's objects, and those of the objects that it holds.

    Where there is a `__getattr__`, they are what it compares its argument with.
    """
    found: set[str] = set()
    for node in classes[name].body:
        for each in (node, *statements(node)) if not isinstance(node, ast.FunctionDef) else (node,):
            found |= bound(each)
            if class_of(each) in classes and class_of(each) != name:
                own = members(class_of(each), classes)
                found |= {f"{outer}.{inner}" for outer in bound(each) for inner in own}
        if isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
            compared = [each.comparators for each in ast.walk(node) if isinstance(each, ast.Compare)]
            found |= {str(each.value) for each, *_ in compared if isinstance(each, ast.Constant)}
    return found


def exported(tree: ast.Module | None, names: set[str]) -> set[str]:
    """Returns what `import *` takes of a module."""
    for node in statements(tree) if tree else ():
        if isinstance(node, ast.Assign) and "__all__" in bound(node):
            return {str(each.value) for each in ast.walk(node.value) if isinstance(each, ast.Constant)}
    return {name for name in names if not name.startswith("_")}


def read(distribution: str) -> tuple[list[str], dict[str, Names]]:
    """Returns the releases that are recorded, and for each module its names."""
    path = FOLDER / f"{distribution}.json"
    if not path.exists():
        return [], {}
    recorded = json.loads(path.read_text(encoding="utf-8"))
    modules = {
        module: {name: set(has.split()) for has, names in groups.items() for name in names.split()}
        for module, groups in recorded["modules"].items()
    }
    return recorded["releases"], modules


def write(distribution: str, wheels: list[Wheel]) -> None:
    """Adds `wheels` to what is recorded: for each module the names by the releases that have them."""
    releases, modules = read(distribution)
    for wheel in wheels:
        for module in MODULES[distribution]:
            names = modules.setdefault(module, {})
            for has in names.values():
                has.discard(wheel.version)
            for name in wheel.names(module):
                names.setdefault(name, set()).add(wheel.version)
    known = {*releases, *(wheel.version for wheel in wheels)}
    releases = sorted(known, key=lambda version: [int(part) for part in version.split(".")])
    recorded = {module: grouped(names, releases) for module, names in sorted(modules.items())}
    text = json.dumps({"releases": releases, "modules": recorded}, indent=1)
    (FOLDER / f"{distribution}.json").write_text(text + "\n", encoding="utf-8")


def grouped(names: Names, releases: list[str]) -> dict[str, str]:
    """Returns names by the releases that have them, both joined by spaces."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        has = " ".join(release for release in releases if release in names[name])
        if has:
            groups.setdefault(has, []).append(name)
    return {has: " ".join(groups[has]) for has in sorted(groups)}


def main() -> None:
    wheels = [Wheel(Path(argument)) for argument in sys.argv[1:]]
    for distribution in {wheel.name for wheel in wheels}:
        write(distribution, [wheel for wheel in wheels if wheel.name == distribution])


if __name__ == "__main__":
    main()
