"""Trains a small network on numbers that are drawn, as any script with a Trainer of Lightning does; three lines of it
are of Spillway."""

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset

import spillway
from spillway.lightning import SpillwayCallback


class Network(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        layers = [torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 4)]
        self.layers = torch.nn.Sequential(*layers)

    def loss(self, batch):
        inputs, labels = batch
        return torch.nn.functional.cross_entropy(self.layers(inputs), labels)

    def training_step(self, batch, _):
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)


lightning.seed_everything(5)
inputs = torch.randn(96, 8)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))
trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=6,
    log_every_n_steps=1,
    logger=False,
    enable_progress_bar=False,
    callbacks=[SpillwayCallback()],
)
trainer.fit(Network(), DataLoader(data, 8, shuffle=True), DataLoader(data, 32), ckpt_path=spillway.resume())
