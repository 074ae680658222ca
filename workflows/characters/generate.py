"""Writes text with a trained model, in plain PyTorch: generate.py MODEL.pt [PROMPT [LENGTH]]"""

import sys

import torch

from model import CHARACTERS, CONTEXT, build, encode


def generate(model, prompt, length, temperature=0.7):
    """Yields characters, each drawn from what the model says comes after the last CONTEXT ones."""
    seen = encode(prompt.rjust(CONTEXT, "\n"))
    for _ in range(length):
        likely = model(seen[None, -CONTEXT:])[0, -1] / temperature
        drawn = torch.multinomial(likely.softmax(-1), 1)
        seen = torch.cat([seen, drawn])
        yield CHARACTERS[int(drawn)]


def main(path, prompt="A stage ", length="300"):
    torch.manual_seed(0)
    torch.set_num_threads(1)  # one character at a time is too little work to share
    model = build()
    model.load_state_dict(torch.load(path))
    model.eval()
    with torch.no_grad():
        print(prompt + "".join(generate(model, prompt, int(length))))


if __name__ == "__main__":
    main(*sys.argv[1:])
