"""From TIR and C text to one library: LLVM objects, and our own linker."""
