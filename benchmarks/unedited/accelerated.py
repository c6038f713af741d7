import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from mlp import Rows
from torch import nn
from torch.utils.data import DataLoader

if __name__ == "__main__":
    set_seed(0)
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
    opt = torch.optim.Adam(model.parameters())
    loader = DataLoader(Rows(), batch_size=64, shuffle=True, num_workers=2)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    for epoch in range(20):
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            opt.step()
        accelerator.print(epoch, loss.item())
