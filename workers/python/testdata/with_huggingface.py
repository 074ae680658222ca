"""Trains a small GPT-2 from its configuration on tokens that are drawn, as any script with a Trainer of Hugging Face
does; three lines of it are of Spillway."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import spillway
from spillway.huggingface import SpillwayCallback

set_seed(3)
tokens = torch.randint(0, 61, (64, 16))
data = [{"input_ids": row, "labels": row} for row in tokens]
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=61, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
)
arguments = TrainingArguments(
    "out",
    num_train_epochs=6,
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    logging_steps=2,
    eval_strategy="steps",
    eval_steps=8,
    save_steps=8,
    save_total_limit=2,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data[:16], callbacks=[SpillwayCallback()])
trainer.train(resume_from_checkpoint=spillway.resume())
