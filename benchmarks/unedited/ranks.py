import torch
import torch.distributed as dist
from mlp import Rows
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rows = Rows()
    sampler = DistributedSampler(rows)
    loader = DataLoader(rows, batch_size=64, sampler=sampler, num_workers=1)
    model = nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
    model = DistributedDataParallel(model)
    opt = torch.optim.Adam(model.parameters())
    for epoch in range(20):
        sampler.set_epoch(epoch)
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print(epoch, loss.item())
    dist.destroy_process_group()
