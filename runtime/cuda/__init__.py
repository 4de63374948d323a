"""CUDA GPUs as devices, through the driver API of cuda-bindings. Nothing here is imported before a GPU is asked for."""
