import torch

from models import functional


def build():
    return functional()


def data():
    return torch.randn(64, 32), torch.randn(64, 32)
