"""Every error that code generation raises on purpose. `exit_code` is what the command line returns for it."""

from __future__ import annotations


class CodegenError(Exception):
    """Base class of the errors of code generation."""

    exit_code = 2


class LinkError(CodegenError):
    """Object files cannot be made into a library: a symbol is missing or twice there, or something is not supported."""
