"""Generators of pages of the documentation, from the compiler's own tables. A checkout uses them; no wheel has them."""
