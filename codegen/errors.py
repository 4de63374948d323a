"""Errors that code generation raises. `exit_code` is what the command line returns for them."""

from __future__ import annotations

from collections.abc import Iterable


class CodegenError(Exception):
    """Base class of the errors of code generation."""

    exit_code = 2


class LinkError(CodegenError):
    """Object files cannot be linked to a library: a symbol is missing or defined twice, or something is not
    supported.
    """


class KernelError(CodegenError):
    """A kernel cannot be generated or compiled. `origins` are the names of the ONNX nodes that it computes."""

    @classmethod
    def refused(cls, symbol: str, reason: str, owner: str, origins: Iterable[str], kept: str = "") -> KernelError:
        """Return the error for a kernel that a compiler refused. `owner`: the plug-in that brought it, "" for
        tilestitch's own; `kept`: path of its text.
        """
        where = f"; its text is in {kept}" if kept else ""
        if owner:
            return cls(f"{owner}: its kernel {symbol} cannot be compiled: {reason}{where}; repair the plug-in", origins)
        advice = "find the operator with --planner none, and report it"
        return cls(f"kernel {symbol} cannot be compiled: {reason}{where}; {advice}", origins)

    def __init__(self, message: str, origins: Iterable[str] = ()) -> None:
        self.origins = tuple(origins)
        shown = ", ".join(self.origins[:4]) + (f" and {len(self.origins) - 4} more" if len(self.origins) > 4 else "")
        super().__init__(f"{message}{f' (ONNX nodes: {shown})' if self.origins else ''}")


def first_error(log: str) -> str:
    """Return the line of a compiler's output that says what is wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no reason given")


class TargetError(CodegenError):
    """The name of a CPU target is not recognised."""

    exit_code = 1


class DisassemblerError(CodegenError):
    """The disassembler is not installed, or does not understand a kernel."""

    exit_code = 4
