"""Performance laws: what bounds a kernel on any GPU, as functions of numbers or NumPy arrays alike."""
