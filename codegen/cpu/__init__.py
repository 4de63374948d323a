"""Code generation for CPUs: kernel templates as TIR, lowering to objects, linking."""
