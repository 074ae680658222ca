"""Two blocks that pass a tensor and its gradient and compute nothing: both are numbers that were there before."""

import torch
from torch import nn


class Given(torch.autograd.Function):
    """A tensor in the place of another one's function."""

    @staticmethod
    def forward(ctx, anchor, tensor):
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        return gradient[-1:].clone(), None  # the last of the numbers that came back


class Taken(torch.autograd.Function):
    """The last number of a tensor, with another tensor for its gradient."""

    @staticmethod
    def forward(ctx, tensor, gradient):
        ctx.gradient = gradient
        return tensor[-1:].clone()

    @staticmethod
    def backward(ctx, _):
        return ctx.gradient.view_as(ctx.gradient), None


class Giver(nn.Module):
    def __init__(self, elements):
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(1))
        self.tensor = torch.full((elements,), 3.0)

    def forward(self, x):
        return Given.apply(self.anchor, self.tensor), x


class Taker(nn.Module):
    def __init__(self, elements):
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(1))
        self.gradient = torch.full((elements,), 5.0)

    def forward(self, tensor, x):
        return Taken.apply(tensor, self.gradient) + self.anchor + 0 * x


class Both(nn.Module):
    def __init__(self, elements):
        super().__init__()
        self.giver, self.taker = Giver(elements), Taker(elements)

    def forward(self, x):
        return self.taker(*self.giver(x))


def blocks(model):
    return [("giver", model.giver), ("taker", model.taker)]


def data():
    return torch.zeros(1, 1)


def loss(output):
    return output.sum()


def one_number():
    return Both(1)


def megabyte():
    return Both(1 << 18)


def megabytes4():
    return Both(1 << 20)


def megabytes16():
    return Both(1 << 22)


def megabytes64():
    return Both(1 << 24)
