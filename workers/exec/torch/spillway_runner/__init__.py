"""Runs PyTorch for Spillway: one process for one model, or for one part of it.

It reads one request a line on a pipe, {"id": number, "command": name, ...}, and answers each with one line on another,
{"id": number, "result": ...} or {"id": number, "error": ...}. Commands run one after another; what one leaves to a
thread is answered later, under a number of its own. Standard output and error belong to the model. It runs on Python
3.8 or later with torch 1.13 or later.

Spillway carries this package in its binary and has a Python import it from memory: no file of it is on the disk then.
"""
