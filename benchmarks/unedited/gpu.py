"""Seven trainings, written as a script is that nobody has tuned.

python gpu.py NAME [SHRUNK]

pictures    small pictures through convolutions
amp         the same in float16, with a GradScaler, and a loss that is read in each step
lstm        windows of many series through an LSTM
attention   sequences through layers of attention with dropout
small       a narrow and deep network on data that is on the GPU
wide        a wide network whose matrices take the time
embedding   a table of embeddings, whose gradients are summed row by row

SHRUNK divides widths and sizes, so that a CPU can do it, too.
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

name, shrunk = sys.argv[1], int([*sys.argv, "1"][2])
device = "cuda" if torch.cuda.is_available() else "cpu"


def sized(number):
    return max(4, number // shrunk)


class Items(Dataset):
    """Items that are handed out one by one."""

    def __init__(self, items):
        self.items, self.kinds = items, torch.randint(0, 2, (len(items),))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        item = self.items[i]
        return (item.float() / 127.5 - 1 if item.dtype == torch.uint8 else item), self.kinds[i]


class Last(nn.Module):
    """Takes the last moment of a sequence."""

    def forward(self, x):
        return (x[0] if isinstance(x, tuple) else x)[:, -1]


def convolutions():
    blocks, before = [], 3
    for width in (sized(32), sized(64), sized(128)):
        blocks += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        before = width
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(before * 16, 2))


def recurrent(width):
    return nn.Sequential(nn.LSTM(20, width, 2, batch_first=True), Last(), nn.Linear(width, 2))


def attention(width):
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.Linear(32, width), nn.TransformerEncoder(layer, 3), Last(), nn.Linear(width, 2))


def dense(width, depth):
    hidden = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), *hidden, nn.Linear(width, 2))


def table(rows, width):
    return nn.Sequential(nn.EmbeddingBag(rows, width), nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 2))


torch.manual_seed(0)
pixels = sized(20_000), 3, 32, 32
model, items, batch_size = {
    "pictures": lambda: (convolutions(), torch.randint(0, 256, pixels, dtype=torch.uint8), 64),
    "amp": lambda: (convolutions(), torch.randint(0, 256, pixels, dtype=torch.uint8), 64),
    "lstm": lambda: (recurrent(sized(128)), torch.randn(sized(20_000), 60, 20), 64),
    "attention": lambda: (attention(sized(256)), torch.randn(sized(20_000), 64, 32), 64),
    "small": lambda: (dense(sized(64), 20), torch.randn(sized(50_000), 64), 64),
    "wide": lambda: (dense(sized(4096), 4), torch.randn(sized(50_000), 64), 1024),
    "embedding": lambda: (table(100_000, sized(64)), torch.randint(0, 100_000, (sized(50_000), 20)), 256),
}[name]()

if __name__ == "__main__":
    data = Items(items)
    if name == "small":
        x, y = data.items.to(device), data.kinds.to(device)
        loader = [(x[i : i + batch_size], y[i : i + batch_size]) for i in range(0, len(x), batch_size)]
    else:
        loader = DataLoader(data, sized(batch_size), shuffle=True, num_workers=2, pin_memory=device == "cuda")
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler(device, enabled=name == "amp")
    for epoch in range(1000):
        total = 0.0
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            with torch.autocast(device, dtype=torch.float16, enabled=name == "amp"):
                loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if name == "amp":
                total += loss.item()
        print(epoch, loss.item(), total)
