"""Contractions on CUDA: GEMMs and convolutions."""
