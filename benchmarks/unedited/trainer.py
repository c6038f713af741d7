from mlp import Rows
from torch import nn
from transformers import Trainer, TrainingArguments


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, x, labels):
        predicted = self.layers(x)
        return {"loss": nn.functional.mse_loss(predicted, labels), "logits": predicted}


class Named(Rows):
    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return {"x": x, "labels": y}


if __name__ == "__main__":
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=64,
        num_train_epochs=20,
        dataloader_num_workers=2,
        remove_unused_columns=False,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
    )
    Trainer(Net(), arguments, train_dataset=Named()).train()
