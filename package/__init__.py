"""tilestitch: an ahead-of-time compiler for deep-learning inference.

Importing this package imports nothing else. `tilestitch.runtime` loads and runs artifacts and needs numpy only;
`tilestitch.compiler` makes them and needs the extra `compiler`.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
