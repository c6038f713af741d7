"""A user's script that is slow because its loader hands out rows one by one."""

import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randn(4096, 30, generator=generator).tolist()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return torch.tensor(self.rows[index]), torch.tensor([sum(self.rows[index])])


torch.manual_seed(0)
loader = DataLoader(Rows(), batch_size=32, shuffle=True)
model = torch.nn.Linear(30, 1)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(400):
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
