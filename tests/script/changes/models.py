"""A small training of a kind, whose model says in which precision and layout it computed, as JSON."""

from __future__ import annotations

import collections
import copy
import io
import json
import sys
from typing import Any

import torch
from torch import nn

Out = collections.namedtuple("Out", "y parts")


PICTURES = ("pictures", "volumes")


class Odd:
    """An output of a kind that nobody knows."""

    def __init__(self, y: Any) -> None:
        self.y = y


class Model(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.filters = nn.Conv2d(3, 4, 3) if kind in PICTURES else nn.Linear(6, 4)
        if kind == "volumes":
            self.volume = nn.Parameter(torch.zeros(1, 1, 1, 1, 1))
        self.drop = nn.Dropout(0.5)
        self.gate = nn.Sigmoid()
        self.seen: list[Any] = []
        self.dropped: list[str] = []

    def forward(self, x: Any) -> Any:
        y = self.filters(x)
        if not torch.compiler.is_compiling():
            self.seen.append(
                [str(y.dtype), y.is_contiguous(memory_format=torch.channels_last) if y.dim() == 4 else None]
            )
        y = self.drop(y)
        if not torch.compiler.is_compiling():
            self.dropped.append(str(y.dtype))
        if self.kind == "gated":
            # 1, if it were computed with the bits of its input.
            return 1 - self.gate(y.abs() + 8)
        if self.kind == "odd":
            return Odd(y)
        return Out(y, {"sum": [y.sum()], "name": "x"}) if self.kind == "named" else y


def main() -> None:
    kind = sys.argv[1]
    torch.manual_seed(0)
    model = Model(kind)
    names = list(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9 if kind in PICTURES else 0)
    losses, dtypes = [], []
    for step in range(6):
        size = 5 if step < 5 else 3
        x = torch.randn(size, 3, 8, 8) if kind in PICTURES else torch.randn(size, 6)
        for _ in range(20 if kind == "loop" else 1):
            found = model(x)
        y = found.y if kind in ("named", "odd") else found
        dtypes.append(str(y.dtype))
        loss = y.float().pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    during = model.seen[:]
    model.seen.clear()
    model.eval()
    with torch.no_grad():
        model(x)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    other = copy.deepcopy(model)
    print(
        json.dumps(
            {
                "losses": losses,
                "dtypes": dtypes,
                "during": during,
                "evaluating": model.seen,
                "dropped": model.dropped[: len(during)],
                "names": list(model.state_dict()) == names,
                "types": sorted({str(each.dtype) for each in model.parameters()}),
                "copied": vars(other).get("_compiled_call_impl") is None,
                "moments": [
                    of["momentum_buffer"].stride() == each.stride()
                    for each, of in optimizer.state.items()
                    if of.get("momentum_buffer") is not None and each.dim() == 4
                ],
                "draw": torch.rand(1).item(),
                "graphs": sum(
                    getattr(sys.modules.get("torch._dynamo.utils"), "counters", {}).get("stats", {}).values()
                ),
            }
        )
    )


if __name__ == "__main__":
    main()
