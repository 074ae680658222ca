"""Models of transformers, small and with random weights: nothing in this file knows of Spillway."""

import torch
import transformers

WORDS, LENGTH = 64, 12


def gpt2(dropout=0.1):
    """Its head is tied to its embedding, and its loss is inside."""
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=4, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def bert(dropout=0.1):
    """Its head is tied to its embedding, and its embeddings are not trained but for the words."""
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LENGTH, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    model = transformers.BertForMaskedLM(config)
    for name in ("position_embeddings", "token_type_embeddings"):
        getattr(model.bert.embeddings, name).requires_grad_(False)
    return model


def still_gpt2():
    return gpt2(0.0)


def still_bert():
    return bert(0.0)


def data():
    generator = torch.Generator().manual_seed(3)
    words = torch.randint(1, WORDS, (24, LENGTH), generator=generator)
    mask = torch.ones_like(words)
    mask[::2, -3:] = 0  # every other sequence is shorter
    labels = words.clone()
    labels[:, -3:] = -100  # as many of each sample count
    return Sequences({"input_ids": words, "attention_mask": mask, "labels": labels})


class Sequences(torch.utils.data.Dataset):
    """What a tokenizer makes."""

    def __init__(self, columns):
        self.columns = columns

    def __len__(self):
        return len(self.columns["labels"])

    def __getitem__(self, number):
        return {name: column[number] for name, column in self.columns.items()}
