"""Advice on scripts as they are found: each rule, through every alias, and only where something differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from sweeper.core.config import TrialConfig
from sweeper.errors import UserError
from sweeper.export.patch import Advice, advice, advice_on, loading, rendered_advice, stepping, waiting
from sweeper.export.patch.source import Source

Rule = Callable[[Source, Mapping[str, Any]], Iterator[Advice]]

BAD = '''\
"""Trains a small CNN, as many do."""
import argparse

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader as DL

from data import Pictures
from net import Net

parser = argparse.ArgumentParser()
parser.add_argument("-b", "--batch-size", type=int, default=32, help="a \\d+")
args = parser.parse_args()
device = torch.device("cuda")
train_loader = DL(Pictures("train"), batch_size=args.batch_size, shuffle=True, num_workers=40)
val_loader = DL(Pictures("val"), batch_size=args.batch_size)
model = Net()
model = model.to(device)
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(10):
    total = 0.0
    for step, (x, y) in enumerate(train_loader):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad(set_to_none=False)
        output = model(x)
        loss = criterion(output, y)
        loss.backward()
        optimizer.step()
        total += loss.item()
        if step % 100 == 0:
            print(f"loss {loss.item():.4f}")
    print(f"epoch {epoch}: {total / len(train_loader):.4f}")
    with torch.no_grad():
        print(sum(model(x.to(device)).argmax(1).eq(y.to(device)).sum().item() for x, y in val_loader))
'''

ADVICE = [
    ("import torch", 'add after it: `torch.set_float32_matmul_precision("high")`'),
    ("import torch", "add after it: `torch.backends.cudnn.benchmark = True`"),
    (
        'DL(Pictures("train"), batch_size=args.batch_size, shuffle...',
        "args.batch_size must be 256 (now 32), num_workers=4 (now 40), prefetch_factor=4, pin_memory=True, "
        "persistent_workers=True, drop_last=True",
    ),
    ("model = model.to(device)", "add after it: `model = torch.compile(model)`"),
    ("model = model.to(device)", "add after it: `model = model.to(memory_format=torch.channels_last)`"),
    (
        "optim.Adam(model.parameters(), lr=1e-3)",
        "torch.optim.AdamW instead of Adam, lr=0.0003 (now 1e-3), weight_decay=0.0, fused=True",
    ),
    ("x.to(device)", "non_blocking=True"),
    ("y.to(device)", "non_blocking=True"),
    ("optimizer.zero_grad(set_to_none=False)", "set_to_none=True (now False)"),
    ("model(x)", 'wrap it and the loss in `with torch.autocast("cuda", dtype=torch.bfloat16):`'),
    ("model(x)", "`x.contiguous(memory_format=torch.channels_last)` instead of `x`, if these are images"),
    ("loss.item()", "keep it on the device (`.detach()`), and read it every hundred steps"),
]

GOOD = """\
import torch
from torch.utils.data import DataLoader

torch.set_float32_matmul_precision("high")
torch.backends.cudnn.benchmark = True
BATCH_SIZE = 256
DTYPE = torch.bfloat16
train_loader = DataLoader(
    Pictures("train"), BATCH_SIZE, shuffle=True, num_workers=4, prefetch_factor=4, pin_memory=True,
    persistent_workers=True, drop_last=True,
)
model = Net().cuda().to(memory_format=torch.channels_last)
model = torch.compile(model, mode="default")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0, fused=True)
for step, (x, y) in enumerate(train_loader):
    x = x.cuda(non_blocking=True).contiguous(memory_format=torch.channels_last)
    y = y.cuda(non_blocking=True)
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=DTYPE):
        loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(loss.item())
"""

WINNER = TrialConfig().replace(
    {
        "batch_size": 256,
        "loader.kind": "rows",
        "loader.num_workers": 4,
        "loader.prefetch_factor": 4,
        "loader.pin_memory": True,
        "precision.amp": "bf16",
        "precision.tf32": True,
        "compile.mode": "default",
        "compile.cudnn_benchmark": True,
        "optimizer.lr": 3e-4,
        "memory_format": "channels_last",
    }
)
WANTED = WINNER.canonical().flatten()

LOOP = """
for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
"""


def told(rule: Rule, source: str, wanted: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What one rule finds, and what that becomes."""
    return [(each.found, each.change) for each in rule(Source(source), wanted)]


def test_a_script_as_many_have_it():
    found = advice(BAD, "train.py", WANTED)
    assert [(each.found, each.change) for each in found] == ADVICE
    lines = BAD.splitlines()
    for each in found:
        assert each.found[:10] in lines[each.line - 1]
    assert [each.line for each in found] == sorted(each.line for each in found)


def test_a_script_that_has_everything():
    assert advice(GOOD, "train.py", WANTED) == []


def test_of_a_script_its_own_parameters_alone():
    assert [each.change for each in advice(BAD, "train.py", {"loader.num_workers": 4, "hidden": 64})] == [
        "num_workers=4 (now 40)",
        "set_to_none=True (now False)",
        "keep it on the device (`.detach()`), and read it every hundred steps",
    ]


@pytest.mark.parametrize(
    ("imported", "name"),
    [
        ("from torch.utils.data import DataLoader as DL", "DL"),
        ("import torch.utils.data as tud", "tud.DataLoader"),
        ("from torch.utils import data", "data.DataLoader"),
        ("import torch", "torch.utils.data.DataLoader"),
        ("from torch.utils.data import *", "DataLoader"),
    ],
)
def test_a_loader_by_every_name(imported, name):
    source = f"{imported}\nloader = {name}(data, 64)\n{LOOP}"
    found = advice(source, "", {"loader.num_workers": 4})
    assert [(each.line, each.found, each.change) for each in found] == [
        (2, f"{name}(data, 64)", "num_workers=4")
    ]


SIZE = {"batch_size": 64}
NO_WORKERS = {"loader.num_workers": 0, "loader.prefetch_factor": 2, "loader.persistent_workers": True}


@pytest.mark.parametrize(
    ("arguments", "wanted", "change"),
    [
        (
            "data, 32, True, None, None, 8",
            {**SIZE, "loader.num_workers": 4},
            "batch_size=64 (now 32), num_workers=4 (now 8)",
        ),
        ("data, batch_size=64, num_workers=4", {**SIZE, "loader.num_workers": 4}, None),
        ("data, batch_size=bs", SIZE, "bs must be 64"),
        ("data, batch_size=SIZE", SIZE, "SIZE must be 64 (now 32)"),
        ("data, batch_size=again", SIZE, "again must be 64"),
        ("data, batch_size=given", SIZE, "given must be 64"),
        ("data, batch_size=one_of_two", SIZE, "one_of_two must be 64"),
        ("*start, 32", SIZE, "batch_size=64"),
        ("data, batch_size=cfg['bs']", SIZE, "cfg['bs'] must be 64"),
        ("data, num_workers=os.cpu_count()", {"loader.num_workers": 4}, "num_workers=4 (now os.cpu_count())"),
        ("data, **options", {"loader.pin_memory": True}, "pin_memory=True (unless `options` has it)"),
        ("data, pin_memory=torch.cuda.is_available()", {"loader.pin_memory": True}, None),
        ("data, drop_last=args.drop", {"loader.drop_last": True}, "args.drop must be True (now False)"),
        ("data, num_workers=2", {"loader.num_workers": 2, "loader.prefetch_factor": 2}, None),
        (
            "data, num_workers=2, prefetch_factor=4, persistent_workers=True",
            NO_WORKERS,
            "num_workers=0 (now 2), prefetch_factor=None (now 4), persistent_workers=False (now True)",
        ),
        ("data", NO_WORKERS, None),
        (
            "data, batch_sampler=s",
            {**SIZE, "loader.drop_last": True},
            "its sampler must return batches of 64",
        ),
        ("data, batch_size=None, sampler=s", SIZE, "its sampler must return batches of 64"),
        (
            "data, 64",
            {**SIZE, "loader.kind": "workers"},
            "a `__getitems__(indices)` in its dataset that reads a whole batch",
        ),
        ("data, 64", {**SIZE, "loader.kind": "rows"}, None),
    ],
)
def test_arguments_of_a_loader(arguments, wanted, change):
    source = f"""\
import torch
parser.add_argument("--drop", action="store_true")
SIZE = 32
again = 64
again += 1
given = 64
one_of_two, other = 64, 3
def main(given): ...
loader = torch.utils.data.DataLoader({arguments})
{LOOP}"""
    assert [change for _, change in told(loading.data_loader, source, wanted)] == ([change] if change else [])


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("loader = DataLoader(a)\nother = DataLoader(b)\n" + LOOP, ["DataLoader(a)"]),
        ("train_loader, val_loader = DataLoader(a), DataLoader(b)\n" + LOOP, ["DataLoader(a)"]),
        ("loaders = {'train': DataLoader(a), 'val': DataLoader(b)}\n" + LOOP, ["DataLoader(a)"]),
        ("loaders = {k: DataLoader(a[k]) for k in ('train', 'val')}\n" + LOOP, ["DataLoader(a[k])"]),
        ("fit(train_loaders=DataLoader(a), val_dataloaders=DataLoader(b))", ["DataLoader(a)"]),
        (
            "def train_dataloader():\n    return DataLoader(a)\n"
            "def test_dataloader():\n    return DataLoader(b)\n",
            ["DataLoader(a)"],
        ),
        (
            "device_loader = DataLoader(a)\nvalues = DataLoader(b)\ninterval = DataLoader(c)\n",
            ["DataLoader(a)", "DataLoader(b)", "DataLoader(c)"],
        ),
    ],
)
def test_of_several_loaders_the_one_that_is_trained_from(source, found):
    source = f"from torch.utils.data import DataLoader\n{source}"
    assert [each for each, _ in told(loading.data_loader, source, {"batch_size": 64})] == found


def test_a_dataset_that_reads_whole_batches_need_not_learn_it():
    source = (
        "import torch\nclass Data:\n    def __getitems__(self, indices): ...\nloader = DataLoader(Data())\n"
    )
    assert told(loading.data_loader, source, {"loader.kind": "workers"}) == []


@pytest.mark.parametrize("kind", ["resident", "stream"])
def test_what_takes_the_place_of_a_loader(kind):
    wanted = TrialConfig().replace({"loader.kind": kind, "batch_size": 64}).canonical().flatten()
    ((_, change),) = told(loading.data_loader, BAD, wanted)
    assert change.startswith("no DataLoader: ")
    assert "64" in change
    assert told(loading.moves, BAD, wanted) == []
    ((_, change),) = told(loading.data_loader, BAD, {"loader.kind": "resident"})
    assert "split(args.batch_size)" in change


@pytest.mark.parametrize(
    ("move", "advised"),
    [
        ("x.to(device)", True),
        ("x.to('cuda:0')", True),
        ("x.to(device=device)", True),
        ("x.cuda()", True),
        ("x.cuda(non_blocking=True)", False),
        ("x.to(device, non_blocking=True)", False),
        ("x.to(torch.float32)", False),
        ("x.to(memory_format=torch.channels_last)", False),
        ("x.to('cpu')", False),
    ],
)
def test_copies_to_the_device(move, advised):
    source = "import torch\n" + LOOP.replace("model(x)", f"model({move})")
    expected = [(move, "non_blocking=True")] if advised else []
    assert told(loading.moves, source, {"loader.pin_memory": True}) == expected
    assert told(loading.moves, source, {"loader.pin_memory": False}) == []


WRAP = 'wrap it and the loss in `with torch.autocast("cpu", dtype=torch.bfloat16):`'


@pytest.mark.parametrize(
    ("imported", "call", "amp", "change"),
    [
        ("import torch", "torch.autocast('cuda', dtype=torch.float16)", "bf16", "{bf16} (now torch.float16)"),
        ("import torch", "torch.autocast('cuda', dtype=torch.float16)", "fp16", None),
        ("import torch", "torch.autocast('cuda', dtype=torch.half)", "fp16", None),
        ("import torch", "torch.autocast('cuda')", "fp16", None),
        ("import torch", "torch.cpu.amp.autocast()", "bf16", None),
        ("import torch", "torch.autocast('cuda')", "fp32", "enabled=False"),
        ("import torch", "torch.autocast('cuda', dtype=kind)", "bf16", "kind must be torch.bfloat16"),
        ("from torch.cuda import amp", "amp.autocast()", "bf16", "{bf16}"),
        ("from torch.cuda.amp import autocast", "autocast(use)", "bf16", "{bf16}, use must be True"),
        ("from torch.cuda.amp import autocast", "autocast(enabled=use)", "fp32", "use must be False"),
        ("from torch.amp import autocast", "autocast('cuda', torch.half)", "bf16", "{bf16} (now torch.half)"),
        ("use = False", "torch.autocast('cpu', enabled=use)", "bf16", "use must be True (now False)"),
        ("from torch import amp as mixed", "mixed.autocast('cpu')", "bf16", None),
    ],
)
def test_an_autocast_that_is_there(imported, call, amp, change):
    source = f"import torch\n{imported}\nwith {call}:\n    pass\n{LOOP}"
    expected = [(call, change.format(bf16="dtype=torch.bfloat16"))] if change else []
    assert told(stepping.autocast, source, {"precision.amp": amp}) == expected


@pytest.mark.parametrize(
    ("there", "device"),
    [
        ("", "cpu"),
        ("with torch.autocast('cpu', enabled=False):\n    pass\n", "cpu"),
        ("with torch.cuda.amp.autocast(False):\n    pass\n", "cuda"),
    ],
)
def test_an_autocast_that_is_missing_or_switched_off(there, device):
    source = f"import torch\n{there}{LOOP}"
    assert told(stepping.autocast, source, {"precision.amp": "bf16"}) == [
        ("model(x)", WRAP.replace("cpu", device))
    ]
    assert told(stepping.autocast, source, {"precision.amp": "fp32"}) == []


@pytest.mark.parametrize(
    ("imported", "call", "amp", "change"),
    [
        ("import torch", "torch.amp.GradScaler('cuda')", "bf16", "enabled=False"),
        ("from torch.cuda.amp import GradScaler as GS", "GS()", "fp32", "enabled=False"),
        ("from torch.cuda import amp", "amp.GradScaler(enabled=use)", "fp16", "use must be True"),
        ("import torch", "torch.amp.GradScaler('cuda')", "fp16", None),
        ("import torch", "torch.amp.GradScaler('cuda', enabled=False)", "bf16", None),
    ],
)
def test_a_scaler_that_is_there(imported, call, amp, change):
    source = f"{imported}\nscaler = {call}\n{LOOP}"
    assert told(stepping.scaler, source, {"precision.amp": amp}) == ([(call, change)] if change else [])


def test_a_scaler_that_is_missing():
    source = f"import torch\n{LOOP}"
    ((found, change),) = told(stepping.scaler, source, {"precision.amp": "fp16"})
    assert found == "loss.backward()"
    assert "`scaler = torch.amp.GradScaler()` before the loop" in change
    assert told(stepping.scaler, source, {"precision.amp": "bf16"}) == []


HIGH = '`torch.set_float32_matmul_precision("high")`'
HIGHEST = HIGH.replace("high", "highest")


@pytest.mark.parametrize(
    ("line", "want", "advised"),
    [
        ("", True, ("import torch", f"add after it: {HIGH}")),
        ("", False, None),
        ("", "default", None),
        ("torch.set_float32_matmul_precision('high')", "default", None),
        ("torch.set_float32_matmul_precision('high')", True, None),
        ("torch.set_float32_matmul_precision('medium')", True, None),
        ("torch.set_float32_matmul_precision('high')", False, HIGHEST),
        ("torch.set_float32_matmul_precision('highest')", True, HIGH),
        ("torch.set_float32_matmul_precision('highest')", False, None),
        ("torch.backends.cuda.matmul.allow_tf32 = True", True, None),
        ("torch.backends.cuda.matmul.allow_tf32 = True", False, HIGHEST),
        ("torch.backends.cuda.matmul.allow_tf32 = False", True, HIGH),
    ],
)
def test_tf32(line, want, advised):
    expected = [] if advised is None else [advised if isinstance(advised, tuple) else (line, advised)]
    assert told(stepping.tf32, f"import torch\n{line}\n{LOOP}", {"precision.tf32": want}) == expected


@pytest.mark.parametrize(
    ("line", "want", "advised"),
    [
        ("", True, ("import torch.backends.cudnn as nn", "add after it: `{}`")),
        ("", False, None),
        ("nn.benchmark = True", True, None),
        ("nn.benchmark = True", False, ("nn.benchmark = True", "`{}`")),
        ("nn.benchmark = False", True, ("nn.benchmark = False", "`{}`")),
        ("nn.benchmark = args.benchmark", True, ("nn.benchmark = args.benchmark", "`{}`")),
    ],
)
def test_the_search_of_cudnn(line, want, advised):
    source = f"import torch.backends.cudnn as nn\n{line}\n{LOOP}"
    change = f"torch.backends.cudnn.benchmark = {want}"
    expected = [(advised[0], advised[1].format(change))] if advised else []
    assert told(stepping.cudnn_benchmark, source, {"compile.cudnn_benchmark": want}) == expected


def test_a_file_that_does_not_train_is_told_of_no_settings():
    source = "from torch.utils.data import DataLoader\nloader = DataLoader(data, 256)\n"
    wanted = {"precision.tf32": True, "compile.cudnn_benchmark": True, "batch_size": 256}
    assert advice(source, "data.py", wanted) == []


@pytest.mark.parametrize(
    ("line", "mode", "advised"),
    [
        ("model = torch.compile(net)", "default", None),
        ("model = torch.compile(net, mode='max-autotune')", "max-autotune", None),
        ("model = torch.compile(net)", "max-autotune", ("torch.compile(net)", 'mode="max-autotune"')),
        ("model = torch.compile(net)", "eager", ("torch.compile(net)", "replace it with `net`")),
        ("model = torch.compile(net)", "graph", ("torch.compile(net)", 'mode="reduce-overhead"')),
        (
            "model = torch.compile(net, mode=how)",
            "default",
            ("torch.compile(net, mode=how)", 'how must be "default"'),
        ),
        (
            "model = Net()\nmodel.compile()",
            "max-autotune",
            ("model.compile()", 'mode="max-autotune"'),
        ),
        ("model = Net()\nmodel.compile()", "eager", ("model.compile()", "remove it")),
        ("@torch.compile\ndef forward(): ...\nmodel = Net()", "default", None),
        ("pattern = re.compile('a')\nmodel = Net()", "eager", None),
        ("model = Net()", "eager", None),
        (
            "model = Net()\nmodel.cuda()",
            "max-autotune",
            ("model.cuda()", 'add after it: `model = torch.compile(model, mode="max-autotune")`'),
        ),
        ("model, extra = build()", "default", ("model, extra = build()", "add after it: {}")),
        ("", "default", ("model(x)", "add before the loop: {}")),
    ],
)
def test_the_mode_of_compilation(line, mode, advised):
    expected = [(advised[0], advised[1].format("`model = torch.compile(model)`"))] if advised else []
    assert told(stepping.compiled, f"import torch\n{line}\n{LOOP}", {"compile.mode": mode}) == expected


@pytest.mark.parametrize(
    ("source", "found"),
    [
        # Made after the function that trains it, and under the name that it is called by there.
        ("def train(model):{}\ncriterion = Loss()\nmodel = Net()\ntrain(model)\n", "model = Net()"),
        # The name says nothing; that it has weights does.
        ("tower = build()\noptimizer = AdamW(tower.parameters())\n{}", "tower = build()"),
        # A function that is called after models is none.
        (
            "def save_model(): ...\nmodel = build()\n"
            "for x in y:\n    save_model()\n    model(x).backward()\n",
            "model = build()",
        ),
        # All in one function, and no loop.
        ("def step(x):\n    model = Net(\n        3\n    )\n    model(x).backward()\n", "model = Net(3)"),
        # Made again after the loop.
        ("model = Net()\n{}\nmodel = Other()\n", "model = Net()"),
        # Moved in each step.
        ("model = Net()\nfor x in y:\n    model.to(x)\n    model(x).backward()\n", "model = Net()"),
    ],
)
def test_where_a_model_is_made(source, found):
    loop = LOOP.replace("\n", "\n    ") if source.startswith("def") else LOOP
    loop = loop.replace("model", "tower") if "tower" in source else loop
    source = f"import torch\n{source.format(loop)}"
    ((at, _),) = told(stepping.compiled, source, {"compile.mode": "default"})
    assert at == found


def test_of_several_models_each():
    source = """\
import torch
netG, netD = G().to(torch.accelerator.current_accelerator()), D()
optimizers = Adam(netD.parameters()), Adam(netG.parameters())
for real in loader:
    loss = criterion(netD(netG(noise)), real)
    loss.backward()
    more = netD(real)
"""
    changes = [change for _, change in told(stepping.compiled, source, {"compile.mode": "default"})]
    assert changes == [f"add after it: `{name} = torch.compile({name})`" for name in ("netD", "netG")]
    wrapped = told(stepping.autocast, source, {"precision.amp": "bf16"})
    assert wrapped == [(call, WRAP.replace("cpu", "cuda")) for call in ("netD(netG(noise))", "netG(noise)")]


def test_two_loops_of_one_model_tell_it_once():
    found = advice(f"import torch\nmodel = Net()\n{LOOP}{LOOP}", "train.py", {"compile.mode": "default"})
    assert [each.change for each in found] == ["add after it: `model = torch.compile(model)`"]


def test_a_model_that_is_an_attribute():
    source = """\
import torch
class Trainer:
    def __init__(self):
        self.model = Net().cuda()
        self.opt = torch.optim.AdamW(self.model.parameters())
    def fit(self):
        for batch in self.loader:
            loss = self.criterion(self.model(batch))
            loss.backward()
            self.opt.step()
"""
    assert told(stepping.compiled, source, {"compile.mode": "default"}) == [
        ("self.model = Net().cuda()", "add after it: `self.model = torch.compile(self.model)`")
    ]


@pytest.mark.parametrize(
    ("imported", "call", "wanted", "change"),
    [
        ("import torch", "torch.optim.AdamW(p)", {"optimizer.fused": True}, "fused=True"),
        ("from torch.optim import SGD", "SGD(p)", {"optimizer.fused": True}, "fused=True"),
        ("from torch import optim", "optim.Adam(p, fused=True)", {"optimizer.fused": True}, None),
        ("from torch import optim", "optim.Adam(p)", {"optimizer.fused": False}, None),
        ("from torch import optim", "optim.RMSprop(p)", {"optimizer.fused": True}, None),
        (
            "from torch import optim",
            "optim.RMSprop(p)",
            {"optimizer.fused": True, "optimizer.name": "sgd"},
            "torch.optim.SGD instead of RMSprop, fused=True",
        ),
        ("from torch.optim.adam import Adam", "Adam(p, 0.1)", {"optimizer.lr": 0.2}, "lr=0.2 (now 0.1)"),
        ("from torch import optim", "optim.Adam(p, lr=lr)", {"optimizer.lr": 0.2}, "lr must be 0.2"),
        ("from torch import optim", "optim.Adam(p, lr=2e-1)", {"optimizer.lr": 0.2}, None),
        ("from torch import optim", "optim.Adam(p, lr=0.00141421356)", {"optimizer.lr": 0.00141421356}, None),
        ("from torch import optim", "optim.AdamW(p)", {"optimizer.weight_decay": 0.01}, None),
        ("from torch import optim", "optim.lr_scheduler.StepLR(p, 2)", {"optimizer.name": "sgd"}, None),
        ("from torch import nn", "nn.Adam(p)", {"optimizer.name": "sgd"}, None),
    ],
)
def test_an_optimiser(imported, call, wanted, change):
    expected = [(call, change)] if change else []
    assert told(stepping.optimizer, f"{imported}\noptimizer = {call}\n", wanted) == expected


def test_the_learning_rate_is_that_of_the_batch():
    rule = {"optimizer.lr": 1e-3, "optimizer.lr_rule": "sqrt", "optimizer.lr_batch_size": 16}
    source = "import torch\ntorch.optim.SGD(p, lr=1e-3)"
    ((_, change),) = told(stepping.optimizer, source, {**rule, "batch_size": 32, "accumulate_steps": 2})
    assert change == "lr=0.002 (now 1e-3)"
    assert told(stepping.optimizer, source, rule) == []


def test_gradients_that_are_zeros():
    source = "import torch\na.zero_grad(False)\nb.zero_grad()\nc.zero_grad(set_to_none=True)"
    assert told(stepping.zero_grad, source, {}) == [("a.zero_grad(False)", "set_to_none=True (now False)")]


def test_the_format_of_memory():
    source = f"""\
import torch
model = Net().to(memory_format=torch.channels_last)
other = torch.empty_like(x, memory_format=torch.preserve_format)
{LOOP}"""
    assert told(stepping.memory_format, source, {"memory_format": "channels_last"}) == []
    ((found, change),) = told(stepping.memory_format, source, {"memory_format": "contiguous"})
    assert found == "Net().to(memory_format=torch.channels_last)"
    assert change == "memory_format=torch.contiguous_format (now torch.channels_last)"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("total += loss.item()", "loss.item()"),
        ("seen.append(loss.detach().cpu().numpy())", "loss.detach().cpu()"),
        ("seen += y.tolist()", "y.tolist()"),
        ("y = y.to('cpu')", "y.to('cpu')"),
        ("print(loss)", "print(loss)"),
        ("print('loss', loss.detach())", "print('loss', loss.detach())"),
        ("bar.set_postfix(loss=loss)", "bar.set_postfix(loss=loss)"),
        ("total += float(loss)", "float(loss)"),
        ("print(loss.item(), y.item())", "print(loss.item(), y.item())"),
        ("if rank == 0: print(loss)", "print(loss)"),
        ("if loss.item() > 5: break", "loss.item()"),
        ("print(x if step else loss)", "print(x if step else loss)"),
        ("value = table.item(3)", None),
        ("print(step)", None),
        ("print(loss.shape, len(losses))", None),
        ("total += loss.detach()", None),
        ("for key, value in y.items(): pass", None),
        ("if step % 10 == 0: print(loss)", None),
        ("if rank == 0 and step % 10 == 0: print(loss)", None),
        ("if step == 0: print(loss)", None),
        ("if time() - began > 5: print(loss)", None),
        ("now = step % 10 == 0; x = loss.item() if now else 0", None),
    ],
)
def test_what_waits_for_the_gpu_in_each_step(line, found):
    source = f"import torch\n{LOOP}    {line}\n"
    assert [each for each, _ in told(waiting.waits, source, {})] == ([found] if found else [])


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (
            "for x in data.tolist():\n    loss = model(x)\n    loss.backward()\n",
            [],
        ),
        (
            "for epoch in range(3):\n    for x in loader:\n        loss = model(x)\n        loss.backward()\n"
            "    scheduler.step()\n    print(loss)\n",
            [],
        ),
        # The parts of an accumulated batch.
        (
            "while True:\n    for part in range(4):\n        loss = model(x)\n        loss.backward()\n"
            "    optimizer.step()\n    print(loss)\n",
            ["print(loss)"],
        ),
        # The loop is in another file.
        (
            "def train_step(x):\n    loss = model(x)\n    loss.backward()\n    return loss.item()\n",
            ["loss.item()"],
        ),
        (
            "for x in loader:\n    total = model(x)\n    total.backward()\n    print(total)\n",
            ["print(total)"],
        ),
        # Two passes in one loop.
        ("for x in loader:\n    loss.backward()\n    other.backward()\n    print(loss)\n", ["print(loss)"]),
        # One pass, no training.
        ("loss = model(x)\nloss.backward()\nprint(loss)\n", []),
        ("for x in loader:\n    self.loss.backward()\n    print(self.name)\n", []),
        (
            "for x in loader:\n    scaler.scale(loss).backward()\n    print(loss)\n    print(scaler)\n",
            ["print(loss)"],
        ),
    ],
)
def test_what_a_step_is(source, found):
    assert [each for each, _ in told(waiting.waits, f"import torch\n{source}", {})] == found


def test_as_text():
    advices = advice(f"import torch\n{LOOP}", "train.py", {"precision.tf32": True, "compile.mode": "default"})
    assert rendered_advice(advices, "train.py") == (
        "train.py:1  import torch\n"
        '    -> add after it: `torch.set_float32_matmul_precision("high")`\n'
        "    because the configuration has `precision.tf32: true`\n"
        "\n"
        "train.py:5  model(x)\n"
        "    -> add before the loop: `model = torch.compile(model)`\n"
        "    because the configuration has `compile.mode: default`\n"
    )
    assert rendered_advice([], "train.py") == "train.py: found nothing to change.\n"


def test_a_file_in_its_own_encoding(tmp_path):
    path = tmp_path / "train.py"
    path.write_bytes(b"# coding: latin-1\nimport torch\nname = '\xe9'\nopt.zero_grad(False)\n")
    assert advice_on(path, WANTED).startswith(f"{path}:4  opt.zero_grad(False)\n")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "can be read, but got .*No such file"),
        (b"import torch\nprint 'python 2'\n", "must name a Python script, but .*line 2"),
        (b"import torch\n\x00", "must name a Python script"),
        (b"import torch\n\xff", "must name a Python script"),
        (b"# coding: klingon\nimport torch\n", "must name a Python script.*klingon"),
        (b"import torch\nx = " + b"(" * 1000, "must name a Python script"),
        (b"import torch\nx = " + b"-" * 100_000 + b"1", "must name a Python script"),
        (b"import torchvision\nfrom .torch import nn\n", "must name a script that imports torch"),
        (b'{"cells": [], "metadata": {}}', "must name a script that imports torch"),
    ],
)
def test_what_is_no_training_script(tmp_path, content, says):
    path = tmp_path / "train.py"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=says) as raised:
        advice_on(path, WANTED)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_folder_is_no_script(tmp_path):
    with pytest.raises(UserError, match=r"can be read, but got .*Is a directory"):
        advice_on(tmp_path, WANTED)
