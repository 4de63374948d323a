"""Errors of the graph IR."""


class IRError(Exception):
    """Base class of the IR's errors; messages name the node or value and the remedy."""


class TypeRuleError(IRError):
    """Operands or attributes violate an operator's type rule."""


class VerifyError(IRError):
    """A graph breaks an invariant (undefined value, cycle, wrong type, unknown operator)."""


class TextError(IRError):
    """The text form of a graph does not parse; carries line and column."""

    def __init__(self, message: str, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {message}")
        self.line = line
        self.column = column


class UndecidedError(IRError):
    """A decision depends on the value of a symbolic size."""

    def __init__(self, claim: str, message: str = "") -> None:
        super().__init__(message or f"whether {claim} depends on sizes that are known only at run time")
        self.claim = claim
