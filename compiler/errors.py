"""Errors of the compiler's driver. `exit_code` is what the command line returns for them."""

from __future__ import annotations


class OptionError(Exception):
    """Options of `compile_model` that make no sense, or not together."""

    exit_code = 1
