"""The models of measure_test.go in PyTorch. Trains one, and prints the seconds of each step; reads a line before each,
so that turns can be taken."""

import sys
import time

import torch
from torch import nn


class Layer(nn.TransformerEncoderLayer):
    def __init__(self):
        super().__init__(256, 4, 1024, dropout=0, activation="gelu", batch_first=True, norm_first=True)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(1000, 256), nn.Parameter(torch.randn(128, 256))
        self.layers = nn.Sequential(*(Layer() for _ in range(4)), nn.LayerNorm(256), nn.Linear(256, 1000))

    def forward(self, x):
        return self.layers(self.words(x) + self.places)


def mlp():
    layers = [layer for i in range(7) for layer in (nn.Linear(784 if i == 0 else 1024, 1024), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(1024, 10)), torch.randn(64, 784), torch.randint(0, 10, (64,))


def cnn():
    return (
        nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(7 * 7 * 64, 10),
        ),
        torch.randn(64, 1, 28, 28),
        torch.randint(0, 10, (64,)),
    )


def transformer():
    return Words(), torch.randint(0, 1000, (8, 128)), torch.randint(0, 1000, (8, 128))


torch.set_num_threads(int(sys.argv[2]))
model, inputs, targets = globals()[sys.argv[1]]()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
for _ in sys.stdin:
    began = time.perf_counter()
    loss = nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss.item()
    print(time.perf_counter() - began, flush=True)
