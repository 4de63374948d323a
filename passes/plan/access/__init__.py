"""How kernels reach the elements of tensors: layouts, strides, vectors, and loops over rows."""
