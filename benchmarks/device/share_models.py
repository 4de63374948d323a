"""What is planned for shares of a GPU and for the whole, to be timed on the shares."""

from __future__ import annotations

SHARES = (8, 32, 64)
"""Multiprocessors. The driver separates eight at a time on these cards."""

WHOLE = "whole"
EXPORTED = ("resnet50", "bert_base")
MLP, TOKENS = "gpt3, 1 of 8", 128
PRECISION = "fp16"
