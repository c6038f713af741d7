"""Small pictures, read one by one, on a GPU if there is one."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, n=20_000):
        g = torch.Generator().manual_seed(0)
        self.pixels = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=g)
        self.kinds = (self.pixels[:, 0, :16].float().mean((1, 2)) > 127.5).long()

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, i):
        return self.pixels[i].float() / 127.5 - 1, self.kinds[i]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        blocks, channels = [], 3
        for width in (32, 64, 128):
            blocks += [
                nn.Conv2d(channels, width, 3, padding=1),
                nn.BatchNorm2d(width),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
            channels = width
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(128 * 4 * 4, 2)

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


if __name__ == "__main__":
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(Pictures(), batch_size=64, shuffle=True, num_workers=2, pin_memory=device == "cuda")
    model = Net().to(device)
    opt = torch.optim.AdamW(model.parameters())
    for epoch in range(1000):
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        print(epoch, loss.item())
