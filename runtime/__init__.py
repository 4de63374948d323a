"""Loads and runs artifacts. Imports numpy and the standard library only."""
