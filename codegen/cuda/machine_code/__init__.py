"""What the assembler made of kernels: their machine code read back, and what in it would be slow or wrong on a GPU."""
