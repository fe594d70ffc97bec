"""A LightningModule with its DataModule, which docs/how-to/from-lightning.md converts: flowers.csv to a
class."""

import csv

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split


class Flowers(lightning.LightningDataModule):
    def __init__(self, path: str = "flowers.csv", batch_size: int = 16):
        super().__init__()
        self.path, self.batch_size = path, batch_size

    def setup(self, stage: str | None = None) -> None:
        with open(self.path, newline="") as file:
            rows = list(csv.DictReader(file))
        self.classes = sorted({row["kind"] for row in rows})
        names = [name for name in rows[0] if name != "kind"]
        x = torch.tensor([[float(row[name]) for name in names] for row in rows])
        y = torch.tensor([self.classes.index(row["kind"]) for row in rows])
        parts = random_split(TensorDataset(x, y), [0.8, 0.1, 0.1], torch.Generator().manual_seed(0))
        self.train, self.validation, self.test = parts
        known = x[self.train.indices]
        self.mean, self.std = known.mean(0), known.std(0)

    def collate(self, rows: list) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = (torch.stack(column) for column in zip(*rows, strict=True))
        return (x - self.mean) / self.std, y

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, self.batch_size, shuffle=True, collate_fn=self.collate)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.validation, self.batch_size, collate_fn=self.collate)


class Classifier(lightning.LightningModule):
    def __init__(self, features: int, classes: int, width: int = 32, learning_rate: float = 1e-2):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(features, width),
            nn.ReLU(),
            nn.LayerNorm(width),
            nn.Linear(width, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: tuple, index: int) -> torch.Tensor:
        x, y = batch
        loss = functional.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple, index: int) -> None:
        x, y = batch
        logits = self(x)
        self.log("val_loss", functional.cross_entropy(logits, y))
        self.log("val_accuracy", (logits.argmax(1) == y).float().mean())

    def configure_optimizers(self) -> dict:
        optimizer = torch.optim.AdamW(
            self.parameters(), lr=self.hparams.learning_rate, weight_decay=0.01
        )
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


if __name__ == "__main__":
    lightning.seed_everything(7)
    data = Flowers()
    data.setup()
    model = Classifier(data.mean.numel(), len(data.classes))
    best = ModelCheckpoint("checkpoints", "best", monitor="val_loss")
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", gradient_clip_val=1.0, callbacks=[best], logger=False
    )
    trainer.fit(model, data)
    torch.save({"mean": data.mean, "std": data.std}, "scaler.pt")
