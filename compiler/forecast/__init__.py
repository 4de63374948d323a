"""How long a model will take on a GPU that need not be there: by our plan, or as PyTorch would run it."""
