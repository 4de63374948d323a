"""From CUDA text to machine code."""
