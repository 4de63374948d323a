"""Primitives as TIR expressions for an element of a value at given indices."""
