"""Edits of a script's source: what is written, and that all else stays as it was."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import re
import subprocess
from pathlib import Path
from typing import Any

import libcst as cst
import pytest
import torch
from torch.utils.data import DataLoader

from sweeper.script.inside.batches import flat_kind
from sweeper.script.patch.code import IN_BFLOAT16, IN_MEMORY, INDEXING
from sweeper.script.patch.edits import PatchedChange, Sources, _product, edit_sources
from sweeper.script.patch.patch import diff
from sweeper.script.patch.source import CannotEditError, edit_call, with_argument

TRAIN = '''#!/usr/bin/env python
"""Trains."""
from __future__ import annotations

import argparse  # options

import torch
from torch.utils.data import DataLoader

from data import Rows


def main():
    loader = DataLoader(
        Rows(),   # one by one
        batch_size=64,
        shuffle=True,
        num_workers=4,
        persistent_workers=True,
    )
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, y in loader:
        optimizer.zero_grad()
'''
PLACES = {"loader": "train.py:14", "optimizer": "train.py:22"}


def sources(folder: Path, text: str = TRAIN, places: dict[str, str] = PLACES) -> Sources:
    (folder / "train.py").write_bytes(text.encode())
    return Sources(folder=folder, main="train.py", places=places, threads=4)


def edited(
    folder: Path, *made: PatchedChange, text: str = TRAIN, places: dict[str, str] = PLACES
) -> list[str]:
    """Returns the lines that are added and removed."""
    (new,) = edit_sources(sources(folder, text, places), made).values()
    compile(new, "train.py", "exec")
    lines = difflib.ndiff(text.splitlines(), new.splitlines())
    return [line for line in lines if line[0] in "+-" and line[2:].strip()]


def test_fused(tmp_path: Path):
    assert edited(tmp_path, PatchedChange(name="optimizer", value="fused", comment="One call.")) == [
        "+     # One call.",
        "-     optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)",
        "+     optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)",
    ]


def test_an_optimizer_that_is_chosen_by_its_name(tmp_path: Path):
    text = TRAIN.replace("torch.optim.Adam(model", "getattr(torch.optim, name)(model")
    made = [
        PatchedChange(name="optimizer", value="fused", comment="x"),
        PatchedChange(name="precision", value="bf16", comment="y"),
    ]
    lines = edited(tmp_path, *made, text=text)
    assert "+     optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-3, fused=True)" in lines
    assert "+     in_bfloat16(model)" in lines


def test_all_optimizers_of_a_kind_are_fused(tmp_path: Path):
    more = "    other = torch.optim.Adam(head.parameters())\n    third = torch.optim.SGD(head.parameters())\n"
    lines = edited(
        tmp_path, PatchedChange(name="optimizer", value="fused", comment="One call."), text=TRAIN + more
    )
    assert sum("fused=True" in line for line in lines) == 2
    assert not any("SGD" in line for line in lines)


def test_gathered(tmp_path: Path):
    lines = edited(tmp_path, PatchedChange(name="loader", value="gathered", comment="Gathered."))
    assert "+ class InMemoryDataset(torch.utils.data.Dataset):" in lines
    assert sorted(lines[-7:]) == sorted(
        [
            "+     # Gathered.",
            "-         Rows(),   # one by one",
            "+         InMemoryDataset(Rows()),   # one by one",
            "-         num_workers=4,",
            "-         persistent_workers=True,",
            "+         num_workers=0,",
            "+         collate_fn=InMemoryDataset.as_is,",
        ]
    )


@pytest.mark.parametrize(
    ("kind", "collate"),
    [
        ("list", None),
        ("tuple", lambda rows: (torch.stack([x for x, _ in rows]), torch.tensor([y for _, y in rows]))),
        ("dict", lambda rows: {"x": torch.stack([x for x, _ in rows])}),
        ("", lambda rows: {"x": (torch.stack([x for x, _ in rows]), torch.tensor([y for _, y in rows]))}),
    ],
)
def test_batches_are_gathered_as_they_were_collated(kind: str, collate: Any):
    names: dict[str, Any] = {"torch": torch}
    exec(IN_MEMORY + INDEXING[kind], names)
    rows = [(torch.randn(3), index) for index in range(20)]
    plain = DataLoader(rows, 6, collate_fn=collate)  # type: ignore[arg-type]
    whole = names["InMemoryDataset"](rows, *([] if collate is None else [collate]))
    as_it_is = eval(kind) if kind else whole.as_is
    for one, other in zip(plain, DataLoader(whole, 6, collate_fn=as_it_is), strict=True):
        assert type(one) is type(other)
        torch.testing.assert_close(other, one, rtol=0, atol=0)
        assert flat_kind(one) == kind
    torch.testing.assert_close(next(iter(DataLoader(whole, None))), whole[0])


def test_flat_batches_have_a_line(tmp_path: Path):
    found = dataclasses.replace(sources(tmp_path), batch="list")
    (new,) = edit_sources(found, [PatchedChange(name="loader", value="gathered", comment="x")]).values()
    compile(new, "train.py", "exec")
    assert "        collate_fn=list,\n" in new
    assert "def select" not in new


def test_a_collate_function_of_the_scripts_own_collates_once(tmp_path: Path):
    text = TRAIN.replace("        num_workers=4,", "        num_workers=4,\n        collate_fn=own,")
    lines = edited(
        tmp_path,
        PatchedChange(name="loader", value="gathered", comment="x"),
        text=text,
        places={"loader": "train.py:14", "optimizer": "train.py:23"},
    )
    assert "+         InMemoryDataset(Rows(), own),   # one by one" in lines
    assert "+         collate_fn=InMemoryDataset.as_is," in lines


def test_no_workers(tmp_path: Path):
    lines = edited(tmp_path, PatchedChange(name="loader", value="no_workers", comment="x"))
    assert [line for line in lines if line.startswith("-")] == [
        "-         num_workers=4,",
        "-         persistent_workers=True,",
    ]


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("compile", "model", "+     model.compile()"),
        ("layout", "channels_last", "+     model.to(memory_format=torch.channels_last)"),
        ("precision", "bf16", "+     in_bfloat16(model)"),
        ("threads", "one", "+ torch.set_num_threads(1)"),
        ("threads", "half", "+ torch.set_num_threads(2)"),
        ("tf32", "on", "+ torch.backends.cudnn.allow_tf32 = True"),
        ("cudnn_benchmark", "search", "+ torch.backends.cudnn.benchmark = True"),
        (
            *("device.malloc", "retain"),
            '+ libc = ctypes.CDLL(None) if sys.platform == "linux" else None',
        ),
        (
            *("allocator", "expandable"),
            '+ os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")',
        ),
        ("spin_wait", "short", '+ os.environ.setdefault("GOMP_SPINCOUNT", "1000")'),
    ],
)
def test_a_line(tmp_path: Path, name: str, value: str, line: str):
    lines = edited(tmp_path, PatchedChange(name=name, value=value, comment="Why."))
    assert line in lines
    assert line[: line.index(line[1:].strip())] + "# Why." in lines
    assert not any(each.startswith("-") for each in lines)


def test_pinned(tmp_path: Path):
    lines = edited(tmp_path, PatchedChange(name="pin_memory", value="on", comment="Why."))
    assert lines == ["+     # Why.", "+         pin_memory=True,"]


def test_spinning_is_set_before_torch_is_imported(tmp_path: Path):
    text = edit_sources(sources(tmp_path), [PatchedChange(name="spin_wait", value="short", comment="x")])[
        "train.py"
    ]
    assert text.index("GOMP_SPINCOUNT") < text.index("import torch")
    assert text.index("__future__") < text.index("GOMP_SPINCOUNT")
    assert text.startswith("#!/usr/bin/env python\n")


def test_a_larger_batch_has_a_larger_rate(tmp_path: Path):
    lines = edited(tmp_path, PatchedChange(name="batch_size", value="256", original="64", comment="x"))
    assert "+         batch_size=256," in lines
    assert "+     optimizer = torch.optim.Adam(model.parameters(), lr=2 * 1e-3)" in lines


@pytest.mark.parametrize(
    ("value", "product"),
    [
        ("args.lr", "2 * args.lr"),
        ("1e-3", "2 * 1e-3"),
        ("rate()", "2 * rate()"),
        ("base + extra", "2 * (base + extra)"),
        ("args.lr if args.lr else 1e-3", "2 * (args.lr if args.lr else 1e-3)"),
    ],
)
def test_a_product_is_of_the_whole_value(value: str, product: str):
    assert _product("2", cst.parse_expression(value)) == product


def test_all_together(tmp_path: Path):
    made = [
        PatchedChange(name=name, value=value, comment=f"{name}.")
        for name, value in (
            ("loader", "gathered"),
            ("optimizer", "fused"),
            ("compile", "model"),
            ("precision", "bf16"),
            ("threads", "one"),
            ("device.malloc", "retain"),
            ("spin_wait", "short"),
        )
    ]
    lines = edited(tmp_path, *made)
    for each in made:
        assert any(line.endswith(f"# {each.name}.") for line in lines)
    assert len([line for line in lines if line.startswith("-")]) == 4


@pytest.mark.parametrize(
    ("made", "places", "why"),
    [
        (PatchedChange(name="optimizer", value="fused"), {}, "does not know where"),
        (PatchedChange(name="optimizer", value="fused"), {"optimizer": "train.py:2"}, "no call"),
        (PatchedChange(name="optimizer", value="fused"), {"optimizer": "gone.py:2"}, "cannot be read"),
        (PatchedChange(name="mine", value="on"), PLACES, "use `sweeper exec`"),
    ],
)
def test_what_cannot_be_written_down_says_why(
    tmp_path: Path, made: PatchedChange, places: dict[str, str], why: str
):
    with pytest.raises(CannotEditError, match=why):
        edit_sources(sources(tmp_path, places=places), [made])


def test_parameters_of_two_models_are_no_model(tmp_path: Path):
    text = TRAIN.replace("model.parameters()", "[*model.parameters(), *other.parameters()]")
    with pytest.raises(CannotEditError, match="one model"):
        edit_sources(sources(tmp_path, text), [PatchedChange(name="compile", value="model")])


def test_unpacked_arguments_are_left_alone(tmp_path: Path):
    text = TRAIN.replace("        Rows(),   # one by one", "        *options,")
    with pytest.raises(CannotEditError, match="unpacked"):
        edit_sources(sources(tmp_path, text), [PatchedChange(name="loader", value="gathered")])


LONG = TRAIN.replace(
    "def main():",
    "def rate():\n    return 1\n\n\ndef clip():\n    pass\n\n\n# All.\n@torch.enable_grad(\n)\ndef main():",
)
LONG_PLACES = {"loader": "train.py:25", "optimizer": "train.py:33"}
MARKS = {"InMemoryDataset": "loader", "bfloat16": "precision", "set_num_threads": "threads"}


@pytest.mark.parametrize(("text", "places"), [(TRAIN, PLACES), (LONG, LONG_PLACES)])
def test_a_hunk_is_of_one_change_and_applies_alone(tmp_path: Path, text: str, places: dict[str, str]):
    asked = {"loader": "gathered", "precision": "bf16", "threads": "one"}
    made = [PatchedChange(name=name, value=value, comment="x") for name, value in asked.items()]
    found = diff(sources(tmp_path, text, places), made)
    head, *hunks = re.split(r"^(?=@@ )", found, flags=re.MULTILINE)
    assert len(hunks) == (3 if text is TRAIN else 5)
    for hunk in hunks:
        added = "".join(line for line in hunk.splitlines() if line.startswith("+"))
        names = {name for mark, name in MARKS.items() if mark in added}
        # TRAIN has one place for definitions and settings: after its imports.
        assert len(names) <= 1 or text is TRAIN
        apply(tmp_path, head + hunk, text)
    new = apply(tmp_path, found, text)
    (whole,) = edit_sources(sources(tmp_path, text, places), made).values()
    assert new == whole


def test_changes_with_a_line_between_them_are_one_hunk(tmp_path: Path):
    model = "    model = torch.nn.Linear(3, 1)\n"
    text = TRAIN.replace(model, "").replace("    loader = ", f"{model}    loader = ")
    made = [
        PatchedChange(name=n, value=v, comment="x")
        for n, v in (("loader", "no_workers"), ("optimizer", "fused"))
    ]
    found = diff(sources(tmp_path, text, {"loader": "train.py:15", "optimizer": "train.py:22"}), made)
    assert found.count("\n@@ ") == 1
    assert "fused=True" in apply(tmp_path, found, text)


def apply(folder: Path, patch: str, text: str) -> str:
    """Returns the script with a patch applied by git."""
    (folder / "train.py").write_bytes(text.encode())
    command = ["git", "apply", "--unsafe-paths", "--directory", str(folder), "-"]
    subprocess.run(command, input=patch.encode(), check=True, cwd=folder)
    return (folder / "train.py").read_bytes().decode()


def test_a_file_without_a_last_newline_is_patched(tmp_path: Path):
    text = TRAIN.rstrip("\n")
    made = [PatchedChange(name="optimizer", value="fused", comment="One call.")]
    found = diff(sources(tmp_path, text), made)
    assert "fused=True" in apply(tmp_path, found, text)


ALL_PLACES = [
    PatchedChange(name="loader", value="gathered", comment="Gathered."),
    PatchedChange(name="optimizer", value="fused", comment="One call."),
    PatchedChange(name="threads", value="one", comment="One thread."),
    PatchedChange(name="spin_wait", value="short", comment="Shorter."),
]
"""Changes whose lines are inserted at every kind of place."""


def test_lines_keep_their_ends(tmp_path: Path):
    text = TRAIN.replace("\n", "\r\n")
    new = apply(tmp_path, diff(sources(tmp_path, text), ALL_PLACES), text)
    assert new.count("\n") == new.count("\r\n") > text.count("\n")
    (plain,) = edit_sources(sources(tmp_path), ALL_PLACES).values()
    assert new.replace("\r\n", "\n") == plain


@pytest.mark.parametrize("text", [TRAIN.replace("\n", "\r\n", 3), TRAIN.replace("\n", "\r")])
def test_a_file_whose_lines_end_in_several_ways_is_not_edited(tmp_path: Path, text: str):
    with pytest.raises(CannotEditError, match="must all end in"):
        diff(sources(tmp_path, text), ALL_PLACES)


def test_what_ends_a_line_of_text_but_none_of_python(tmp_path: Path):
    page = "from data import Rows\n\x0c\n# a\x0cb\x85c\u2028d\n"
    text = TRAIN.replace("from data import Rows\n", page)
    places = {"loader": "train.py:16", "optimizer": "train.py:24"}
    new = apply(tmp_path, diff(sources(tmp_path, text, places), ALL_PLACES), text)
    (plain,) = edit_sources(sources(tmp_path), ALL_PLACES).values()
    added = page.removeprefix("from data import Rows\n")
    assert new.count(added) == 1
    assert new.replace(added, "") == plain


def test_a_file_is_edited_once_however_it_is_named(tmp_path: Path):
    (tmp_path / "linked.py").symlink_to("train.py")
    places = {"loader": f"{tmp_path}/train.py:14", "optimizer": "./linked.py:22"}
    found = diff(sources(tmp_path, TRAIN, places), ALL_PLACES)
    assert found.count("--- ") == 1
    (plain,) = edit_sources(sources(tmp_path), ALL_PLACES).values()
    assert apply(tmp_path, found, TRAIN) == plain


@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (0, "**options"),
        (4, '**{**options, "num_workers": 0, "persistent_workers": False, "prefetch_factor": None}'),
    ],
)
def test_options_that_are_unpacked_stay(tmp_path: Path, workers: int, options: str):
    begin, end = TRAIN.index("DataLoader(\n"), TRAIN.index("    model =")
    text = f"{TRAIN[:begin]}DataLoader(Rows(), **options)\n{TRAIN[end:]}"
    found = dataclasses.replace(sources(tmp_path, text), workers=workers)
    (new,) = edit_sources(found, [PatchedChange(name="loader", value="gathered", comment="x")]).values()
    compile(new, "train.py", "exec")
    line = f"    loader = DataLoader(InMemoryDataset(Rows()), {options}, collate_fn=InMemoryDataset.as_is)"
    assert line in new.splitlines()


def test_layers_multiply_in_bfloat16_and_copies_are_copies():
    names: dict[str, Any] = {"torch": torch}
    exec(IN_BFLOAT16, names)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Sigmoid(), torch.nn.Linear(8, 2))
    x, keys = torch.randn(16, 4), list(model.state_dict())
    plain = model(x)
    names["in_bfloat16"](model)
    halved = model(x)
    assert halved.dtype == torch.float32
    assert not torch.equal(halved, plain)
    assert torch.allclose(halved, plain, rtol=0.05, atol=0.01)
    with torch.no_grad():
        assert torch.equal(model(x), plain)
        # An average of the weights is such a copy.
        other = copy.deepcopy(model)
        other[0].weight.zero_()
        assert not torch.equal(other(x), model(x))
    assert not torch.equal(other(x), model(x))
    assert list(model.state_dict()) == keys


def test_a_diff_is_relative_to_the_folder(tmp_path: Path):
    found = diff(sources(tmp_path), [PatchedChange(name="optimizer", value="fused", comment="One call.")])
    assert found.startswith("--- a/train.py\n+++ b/train.py\n@@ ")
    assert diff(sources(tmp_path), []) == ""


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("f()\n", "f(a=1)\n"),
        ("f(x)\n", "f(x, a=1)\n"),
        ("f(x, a=2)\n", "f(x, a=1)\n"),
        ("f(x,\n  y,\n  )\n", "f(x,\n  y,\n  a=1,\n  )\n"),
        ("f(x,y)\n", "f(x,y,a=1)\n"),
        ("f(x, *y)\n", "f(x, *y, a=1)\n"),
    ],
)
def test_an_argument_is_added_as_the_others_are_written(call: str, expected: str):
    assert edit_call(call, 1, {"f"}, lambda each: with_argument(each, "a", "1")) == expected
