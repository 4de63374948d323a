"""CUDA kernels: one template a kind of group, TVM for the text, NVRTC for the machine code."""
