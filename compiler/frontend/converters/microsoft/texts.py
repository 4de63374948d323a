"""Tokenisation of strings, on the host.

ONNX Runtime's regular expressions (RE2) find the longest match, Python's the first. They agree on sequences of
characters and classes with repetition counts, and only such expressions are accepted.
"""

import re
from collections.abc import Mapping

from tilestitch.compiler.ir import UNKNOWN, TensorType, Type, Value

from ...context import Context
from ..host_types import tensor_step
from .operator import REMEDY, Operator

_CLASS = r"\[\^?\]?(?:[^\[\]\\]|\\[wdWD]|\\s|\\[^\w\s]|\\[tnrf])*\]"
_ATOM = rf"(?:{_CLASS}|\\[wWdDsS]|\\[tnrf]|\\[^\w\s]|[^\\\[\]()|?*+{{}}^$])"
_SIMPLE = re.compile(rf"(?:\^|\\b|\\B)?(?P<core>(?:{_ATOM}(?:[+*?]|\{{\d+(?:,\d*)?\}})?)+)(?:\$|\\b|\\B)?")
_SPACES = r"\t\n\f\r "


def _pattern(ctx: Context, name: str, text: str) -> str:
    """Return an expression in Python's syntax."""
    if not _SIMPLE.fullmatch(text):
        raise ctx.fail(
            f"{name} has the regular expression {text!r}; supported are characters and classes of them with + * ? or"
            f" {{n,m}} after them, without groups and alternatives; {REMEDY}"
        )
    in_classes = re.sub(_CLASS, lambda found: found[0].replace(r"\s", _SPACES), text)
    spaced = in_classes.replace(r"\s", f"[{_SPACES}]").replace(r"\S", f"[^{_SPACES}]")
    return spaced[:-1] + r"\Z" if spaced.endswith("$") and not spaced.endswith(r"\$") else spaced


def _separator(ctx: Context, text: str) -> str:
    pattern, found = _pattern(ctx, "separators", text), _SIMPLE.fullmatch(text)
    if found and re.fullmatch(found["core"], ""):
        raise ctx.fail(f"separators has {text!r}, which nothing at all is a match of; it has to match a character")
    return pattern


def tokenizer(ctx: Context) -> Value:
    x, least = ctx.input(0), ctx.attr("mincharnum")
    if not isinstance(x.type, TensorType) or x.type.rank not in (1, 2):
        raise ctx.fail(f"its operand is {x.type}; it takes texts of shape [C] or [N, C]")
    type_: Type = x.type.with_shape((*x.type.shape, UNKNOWN))
    if least < 1:
        raise ctx.fail(f"mincharnum is {least}; it has to be 1 or more")
    attrs = {"mark": ctx.attr("mark"), "pad_value": ctx.attr("pad_value"), "mincharnum": least}
    separators, token = tuple(ctx.attr("separators", ())), ctx.attr("tokenexp", "")
    if not separators and not token:
        raise ctx.fail("it has neither separators nor tokenexp; give it one of them")
    if separators == ("",) or (not separators and token == "."):  # each character is a token
        if least > 1:
            raise ctx.fail(f"mincharnum is {least} for tokens of one character; it has to be 1")
    elif separators:
        attrs["separators"] = tuple(_separator(ctx, one) for one in separators)
    else:
        attrs["token"] = _pattern(ctx, "tokenexp", token)
    return tensor_step(ctx, "Tokenizer", (x,), [type_], **attrs)[0]


OPERATORS: Mapping[str, Operator] = {
    "Tokenizer": Operator(tokenizer, "X", "mark mincharnum pad_value separators tokenexp"),
}
