"""Contains the functions and classes that a patch adds to a script."""

from __future__ import annotations

from collections.abc import Mapping

IN_MEMORY = '''\
class InMemoryDataset(torch.utils.data.Dataset):
    """A dataset that is loaded into memory once. Its transforms must be deterministic."""

    def __init__(self, dataset, collate=torch.utils.data.default_collate):
        self.size = len(dataset)
        self.columns = collate([dataset[index] for index in range(self.size)])

    def __len__(self):
        return self.size

    def __getitems__(self, indices):
        return self[torch.tensor(indices)]

    def __getitem__(self, index):
'''
INDEXING: Mapping[str, str] = {
    "list": "        return [column[index] for column in self.columns]\n",
    "tuple": "        return tuple(column[index] for column in self.columns)\n",
    "dict": "        return {name: column[index] for name, column in self.columns.items()}\n",
    "": """\
        return self.select(self.columns, index)

    def select(self, columns, index):
        if isinstance(columns, dict):
            return {name: self.select(column, index) for name, column in columns.items()}
        if isinstance(columns, (list, tuple)):
            return type(columns)(self.select(column, index) for column in columns)
        return columns[index]

    @staticmethod
    def as_is(batch):
        return batch
""",
}
"""The rest of `IN_MEMORY`, by the type of a batch that contains only tensors; the last is for any batch."""

IN_BFLOAT16 = '''\
def in_half(layer, x):
    forward = type(layer).forward
    if not torch.is_grad_enabled():
        return forward(layer, x)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        return forward(layer, x).float()


def in_bfloat16(model):
    """Makes a model's layers multiply in bfloat16 as it trains. Everything between them stays float32."""
    for layer in model.modules():
        if isinstance(layer, (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)):
            layer.forward = in_half.__get__(layer)
'''

DEFINITIONS: Mapping[str, str] = {"in_bfloat16": IN_BFLOAT16}
"""Functions that a change may add, by name."""
