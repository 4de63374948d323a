"""Attention on GPUs as plain data: operands, softmax, masks by position, tiles, and legality of schedules."""
