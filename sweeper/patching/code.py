"""Contains the functions and classes that a patch adds to a script."""

from __future__ import annotations

from collections.abc import Mapping

COLLATED = '''\
class Collated(torch.utils.data.Dataset):
    """The rows of a data set, read once: a batch is gathered from them. Rows must not be drawn at random."""

    def __init__(self, rows, collate=torch.utils.data.default_collate):
        self.size = len(rows)
        self.columns = collate([rows[index] for index in range(self.size)])

    def __len__(self):
        return self.size

    def __getitems__(self, indices):
        indices = torch.tensor(indices)
'''
GATHERING: Mapping[str, str] = {
    "list": "        return [column[indices] for column in self.columns]\n",
    "tuple": "        return tuple(column[indices] for column in self.columns)\n",
    "dict": "        return {name: column[indices] for name, column in self.columns.items()}\n",
    "": """\
        return self.gathered(self.columns, indices)

    def gathered(self, columns, indices):
        if isinstance(columns, dict):
            return {name: self.gathered(each, indices) for name, each in columns.items()}
        if isinstance(columns, (list, tuple)):
            return type(columns)(self.gathered(each, indices) for each in columns)
        return columns[indices]

    @staticmethod
    def batch(gathered):
        return gathered
""",
}
"""The rest of `COLLATED`, by the type of a batch that contains only tensors; the last is for any batch."""

IN_BFLOAT16 = '''\
def in_half(layer, x):
    forward = type(layer).forward
    if not torch.is_grad_enabled():
        return forward(layer, x)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return forward(layer, x).float()


def in_bfloat16(model):
    """Has the layers of a model multiply in bfloat16 as it trains. All between them stays float32."""
    for each in model.modules():
        if isinstance(each, (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)):
            each.forward = in_half.__get__(each)
'''
