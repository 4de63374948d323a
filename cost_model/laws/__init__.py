"""Performance laws: bounds on a kernel on any GPU, as functions of numbers or NumPy arrays."""
