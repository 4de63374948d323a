"""Tile synchronisation as plain data: how a kernel's blocks are numbered, semaphores, and what waits for them."""
