import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    """Rows of 30 numbers, handed out one by one."""

    def __init__(self, n=200_000):
        g = torch.Generator().manual_seed(0)
        x = torch.randn(n, 30, generator=g)
        w = torch.randn(30, generator=g) / 30**0.5
        y = torch.tanh(x @ w) + 0.5 * torch.randn(n, generator=g)
        self.x, self.y = x.tolist(), y.tolist()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.tensor(self.x[i]), torch.tensor([self.y[i]])


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(Rows(), batch_size=64, shuffle=True, num_workers=4)
    model = nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
    opt = torch.optim.Adam(model.parameters())
    for epoch in range(20):
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            opt.step()
        print(epoch, loss.item())
