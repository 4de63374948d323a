"""Primitives as TIR expressions: what an element of a value is, at given indices."""
