"""Generator of the reference of primitives: `python -m tilestitch.compiler.ir.document > docs/primitives.md`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from .ops import OPS, Kind, OpSpec

TITLES = {
    Kind.INJECTIVE: ("Injective", "An element of the result needs a bounded number of elements of the operands."),
    Kind.VIEW: ("Views", "Every element of the result is one element of the operand; only indices change."),
    Kind.REDUCTION: ("Reductions", "Whole axes are folded."),
    Kind.CONTRACTION: ("Contractions", "Multiply and sum over axes: GEMM and convolutions."),
    Kind.OPAQUE: ("Opaque", "Each has a kernel template of its own."),
    Kind.CONTROL: ("Control", "The runtime executes nested programs. Operands in the end are captured outer values."),
}

OPERANDS = {
    "select": "cond, a, b",
    "concat": "x0, x1, …",
    "pad": "x [, value]",
    "iota": "none",
    "sizes": "none",
    "gather": "x, indices",
    "gather_elements": "x, indices",
    "gather_nd": "x, indices",
    "matmul": "a, b",
    "block_matmul": "x, w",
    "conv": "x, w",
    "conv_transpose": "x, w",
    "scatter_elements": "x, indices, updates",
    "scatter_nd": "x, indices, updates",
    "suppress": "boxes, scores, most, overlap, least",
    "compact": "mask, ends",
    "roi_align": "x, regions, images",
    "append": "x",
    "if": "cond, captures…",
    "loop": "max_trip, cond, carried…, captures…",
    "scan": "state…, scanned…, captures…",
    "call": "operands…",
    "sequence_map": "sequence, others…, captures…",
}
"""Operands of operators other than `x`, or `a, b`."""

MEANINGS = {
    "neg": "-x",
    "abs": "the magnitude of x",
    "sign": "-1, 0 or 1",
    "floor": "the largest integral value that is not above x",
    "ceil": "the smallest integral value that is not below x",
    "round": "the nearest integral value, the even one of two",
    "trunc": "x without its fraction",
    "is_nan": "whether x is NaN",
    "is_inf": "whether x is infinite, of the signs that the attributes say",
    "logical_not": "not x, of bool",
    "bitwise_not": "all bits of x turned over",
    "add": "a + b; integers wrap",
    "sub": "a - b; integers wrap",
    "mul": "a * b; integers wrap",
    "equal": "whether a = b",
    "less": "whether a < b",
    "less_equal": "whether a <= b",
    "maximum": "the larger of both; NaN if either is NaN",
    "minimum": "the smaller of both; NaN if either is NaN",
    "shift_left": "a shifted by b bits; a shift outside 0..width-1 leaves 0",
    "shift_right": "a shifted by b bits; a signed a keeps its sign, and outside 0..width-1 only that is left",
    "reduce_sum": "the sum over `axes`; half floats accumulate in float32",
    "reduce_prod": "the product over `axes`; half floats accumulate in float32",
    "reduce_max": "the largest element over `axes`; NaN if there is one",
    "reduce_min": "the smallest element over `axes`; NaN if there is one",
    "arg_max": "the index of the largest element along `axis`, int64",
    "arg_min": "the index of the smallest element along `axis`, int64",
}
"""Meanings of operators that the table describes in families."""

ATTRIBUTES = {
    "after": "padding after the data: an int for each spatial axis, of `pad` for each axis",
    "axes": "tuple of axes, 0 <= axis < rank",
    "axis": "one axis, 0 <= axis < rank",
    "batch_dims": "leading axes that operands share",
    "before": "padding before the data, as `after`",
    "block": "codes that share a scale; of a mask: how many elements are counted together",
    "body": "the nested graph",
    "codes": "`int4`, `int8`, or the tables `nf4`, `fp4`",
    "depth": "of the reduction; what a last block has beyond it is 0",
    "dilations": "steps between the elements of a window, for each spatial axis",
    "dtype": "of the result",
    "else_graph": "the nested graph where the condition is false",
    "exclusive": "whether an element's own value is left out",
    "groups": "channels of operand and result are cut into so many groups, each with weights of its own",
    "input_axes": "the axis along which each scanned operand is cut",
    "input_reverse": "for each scanned operand, whether it is read from its end",
    "keepdims": "whether folded axes stay, with size 1",
    "kernel": "sizes of the window, for each spatial axis",
    "k": "how many elements",
    "largest": "whether the largest elements are wanted, else the smallest",
    "layout": "`NCX`: channels before the spatial axes; `NXC`: after them",
    "mode": "what is put around the data: `constant`, `edge`, `reflect` or `wrap`",
    "negative": "whether minus infinity counts",
    "at": "where the first of them is stored",
    "cache": "the input of the model that the result grows",
    "capacity": "how many places the result's memory has along the axis",
    "num_carried": "how many operands are carried from one iteration to the next",
    "num_inputs": "how many operands are cut into elements, or given to each call of the body",
    "num_scanned": "how many operands are cut into elements, one for each call of the body",
    "num_state": "how many operands are state",
    "rounded": "whether the product is rounded before it is added to, and not once with the sum",
    "rounds": "whether the left operand is rounded to 8 bits first, block by block",
    "out_dtype": "of the result, where that is wider than the operands'",
    "output_axes": "the axis along which each scanned result is put together",
    "output_padding": "elements that the result has more, for each spatial axis",
    "output_reverse": "for each scanned result, whether it is written from its end",
    "perm": "result axis i is operand axis perm[i]",
    "positive": "whether plus infinity counts",
    "precision": "`tf32`: kernels may round float32 operands, and sums of 8-bit floats, to 10 bits of mantissa",
    "reducer": "`sum`, `prod` or `max`",
    "reduction": "of several updates of one element: `none` (the last one counts), `add`, `mul`, `max`, `min`",
    "reverse": "whether it runs from the end of the axis",
    "round_mode": "of casts to float8e8m0: `up`, `down` or `nearest`",
    "saturate": "whether casts to 8-bit floats give the largest number for what is too large",
    "scales": "the dtype of a scale",
    "select_last": "which index counts where elements are equal: the last, else the first",
    "shape": "of the result",
    "sizes": "elements that are taken along each axis",
    "starts": "the index of the first element along each axis",
    "steps": "from one element taken to the next along each axis; may be negative",
    "strides": "steps of the window, for each spatial axis",
    "table": "512 hexadecimal digits: the bytes of the entries",
    "then_graph": "the nested graph where the condition is true",
    "to": "the dtype of the result",
    "trans_a": "whether the last two axes of `a` are swapped",
    "trans_b": "whether the last two axes of `b` are swapped",
    "count": "how many elements of a mask are true",
    "centers": "whether boxes are centre and size (x, y, width, height); else two corners",
    "size": "of the result, in bins",
    "ratio": "samples of a bin along each axis; 0: as many as it has elements",
    "scale": "from coordinates of regions to elements of x",
    "offset": "what is subtracted from scaled coordinates",
    "zeros": "whether a block has a zero point, a code that is taken from the others",
    "values": "one size for each element: an int, or an expression over the graph's symbols",
}

HEAD = """\
# Primitives

The operators of the [graph](ir.md), which passes rewrite and fusion rules look at. This page is generated from the
operator table: `python -m tilestitch.compiler.ir.document > docs/primitives.md`.

Operands and results are `Value` objects of a `Node`, attributes lie in `node.attrs`; those in brackets may be missing.
Element-wise operators broadcast as numpy does. `graph.emit("add", a, b, origins=node.origins)` makes a node and returns
its result, whose type follows from the operator's rule. The meaning in numbers of each operator is the numpy function
of that name in `tilestitch.runtime.host`. An operator called `host.NAME` runs as the numpy function `NAME` between
kernels. Operators marked * take many cycles for an element.
"""


def page() -> str:
    """Return the whole page in Markdown."""
    by_kind = sorted(OPS.values(), key=lambda spec: list(TITLES).index(spec.kind))
    parts = [HEAD]
    for kind, specs in groupby(by_kind, key=lambda spec: spec.kind):
        title, meaning = TITLES[kind]
        rows = [_row(spec) for spec in specs]
        parts.append(_table(f"## {title}\n\n{meaning}", ("name", "operands", "attributes", "meaning"), rows))
    used = sorted({name for spec in OPS.values() for name in spec.attrs})
    parts.append(_table("## Attributes", ("name", "meaning"), [(f"`{name}`", ATTRIBUTES[name]) for name in used]))
    return "\n".join(parts)


def _row(spec: OpSpec) -> tuple[str, str, str, str]:
    attributes = ", ".join(f"`{name}`" if needed else f"[`{name}`]" for name, needed in spec.attrs.items())
    meaning = MEANINGS.get(spec.name) or spec.doc.removeprefix(f"{spec.name}: ")
    return f"`{spec.name}`{'*' if spec.expensive else ''}", _operands(spec), attributes, meaning


def _operands(spec: OpSpec) -> str:
    return OPERANDS.get(spec.name) or {1: "x", 2: "a, b"}[spec.arity[1]]


def _table(head: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, "", _line(columns), _line(["---"] * len(columns)), *map(_line, rows), ""]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    print(page(), end="")
