"""Kernels of libraries, as PyTorch launches them: cuBLAS GEMMs, element-wise ones, softmax, layer normalisation."""
