"""Tile synchronisation as plain data: the numbering of a kernel's blocks, semaphores, and who waits for them."""
