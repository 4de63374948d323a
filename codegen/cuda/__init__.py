"""CUDA kernels: one template per kind of group, TVM for the text, NVRTC for the machine code."""
