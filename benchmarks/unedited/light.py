import lightning
import torch
from mlp import Rows
from torch import nn
from torch.utils.data import DataLoader


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.mse_loss(self.layers(x), y)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


if __name__ == "__main__":
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        max_epochs=20, accelerator="cpu", enable_progress_bar=False, logger=False, enable_checkpointing=False
    )
    trainer.fit(Module(), DataLoader(Rows(), batch_size=64, shuffle=True, num_workers=2))
