"""A small training whose speed is set by what it sleeps."""

import sys
import time

import torch
from helper import PAUSE

torch.manual_seed(1)
RATE = float(sys.argv[2]) if len(sys.argv) > 2 else 0.1
pause = float(sys.argv[1]) if len(sys.argv) > 1 else PAUSE
x = torch.randn(64, 8)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), RATE)
for _ in range(100_000):
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(pause)
