"""Errors of reading machine code."""

from __future__ import annotations

from tilestitch.codegen.errors import CodegenError


class DisassemblerError(CodegenError):
    """The disassembler is not installed, or does not understand a kernel."""

    exit_code = 4
