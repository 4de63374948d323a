"""Library kernels as launched by PyTorch: cuBLAS GEMMs, element-wise kernels, softmax, layer normalisation."""
