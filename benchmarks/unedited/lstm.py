import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    """Windows of 60 days of 21 synthetic series."""

    def __init__(self):
        g = torch.Generator().manual_seed(0)
        self.samples = []
        for _ in range(21):
            series = torch.randn(2563, 20, generator=g) * 0.02
            for end in range(60, 2563):
                self.samples.append((series, end))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        series, end = self.samples[i]
        return series[end - 60 : end], (series[end, 3] > 0).float()


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(20, 64, batch_first=True)
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1]).squeeze(-1)


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(Windows(), batch_size=64, shuffle=True, num_workers=4)
    model = Lstm()
    opt = torch.optim.Adam(model.parameters())
    for epoch in range(20):
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(model(x), y)
            loss.backward()
            opt.step()
        print(epoch, loss.item())
