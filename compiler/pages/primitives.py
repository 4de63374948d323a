"""Generator of the reference of primitives: `python -m tilestitch.compiler.pages.primitives > docs/primitives.md`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tilestitch.compiler.ir.ops import OPS, Kind, OpSpec

TITLES = {
    Kind.INJECTIVE: ("Injective", "An element of the result needs a bounded number of elements of the operands."),
    Kind.VIEW: ("Views", "Every element of the result is one element of the operand; only indices change."),
    Kind.REDUCTION: ("Reductions", "Whole axes are reduced."),
    Kind.CONTRACTION: ("Contractions", "Multiply and sum over axes: GEMM and convolutions."),
    Kind.OPAQUE: ("Opaque", "Each has a kernel template of its own."),
    Kind.CONTROL: ("Control", "The runtime executes nested programs. The last operands are captured outer values."),
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
    "block_matmul": "x, w, indices?",
    "conv": "x, w",
    "conv_transpose": "x, w",
    "scatter_elements": "x, indices, updates",
    "scatter_nd": "x, indices, updates",
    "suppress": "boxes, scores, most, overlap, least",
    "compact": "mask, ends",
    "roi_align": "x, regions, images",
    "append": "x, places?, end?",
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
    "trunc": "x rounded towards zero",
    "exp": "e to the power of x",
    "log": "natural logarithm of x",
    "sin": "sine of x, in radians",
    "cos": "cosine of x, in radians",
    "tan": "tangent of x, in radians",
    "asin": "inverse sine of x",
    "acos": "inverse cosine of x",
    "atan": "inverse tangent of x",
    "sinh": "hyperbolic sine of x",
    "cosh": "hyperbolic cosine of x",
    "tanh": "hyperbolic tangent of x",
    "asinh": "inverse hyperbolic sine of x",
    "acosh": "inverse hyperbolic cosine of x",
    "atanh": "inverse hyperbolic tangent of x",
    "erf": "error function of x",
    "is_nan": "whether x is NaN",
    "is_inf": "whether x is infinite, with a sign for which the attribute is set",
    "logical_not": "negation of a bool",
    "bitwise_not": "all bits of x inverted",
    "add": "a + b; integers wrap",
    "sub": "a - b; integers wrap",
    "mul": "a * b; integers wrap",
    "equal": "whether a = b",
    "less": "whether a < b",
    "less_equal": "whether a <= b",
    "maximum": "the larger of both; NaN if either is NaN",
    "minimum": "the smaller of both; NaN if either is NaN",
    "shift_left": "a shifted by b bits; a shift outside 0..width-1 leaves 0",
    "shift_right": "a shifted by b bits, arithmetically if signed; a shift outside 0..width-1 leaves the sign",
    "reduce_sum": "the sum over `axes`; half floats accumulate in float32",
    "reduce_prod": "the product over `axes`; half floats accumulate in float32",
    "reduce_max": "the largest element over `axes`; NaN if there is one",
    "reduce_min": "the smallest element over `axes`; NaN if there is one",
    "arg_max": "the index of the largest element along `axis`, int64",
    "arg_min": "the index of the smallest element along `axis`, int64",
}
"""Meanings of operators that the table describes in families."""

ATTRIBUTES = {
    "after": "padding after the data: an integer for each spatial axis (`pad`: for each axis)",
    "axes": "tuple of axes, 0 <= axis < rank",
    "axis": "one axis, 0 <= axis < rank",
    "batch_dims": "leading axes that operands share",
    "before": "padding before the data, as `after`",
    "block": "number of codes that share a scale; of a mask: number of elements that are counted together",
    "body": "the nested graph",
    "codes": "what the codes of weights are: `int4`, `int8`, or indices of the tables `nf4`, `fp4`",
    "depth": "length of the reduction; codes of the last block beyond it are 0",
    "dilations": "steps between the elements of a window, for each spatial axis",
    "dtype": "dtype of the result",
    "else_graph": "the nested graph where the condition is false",
    "exclusive": "whether an element's own value is left out",
    "groups": "number of groups of channels, each with weights of its own",
    "input_axes": "for each scanned operand, the axis along which it is sliced",
    "input_reverse": "for each scanned operand, whether it is read from its end",
    "keepdims": "whether reduced axes stay, with size 1",
    "kernel": "sizes of the window, for each spatial axis",
    "k": "number of elements",
    "largest": "whether the largest elements are wanted, else the smallest",
    "layout": "`NCX`: channels before the spatial axes; `NXC`: after them",
    "mode": "of `pad`, what the padding is: `constant`, `edge`, `reflect` or `wrap`; of `roi_align`: `avg` or `max`",
    "negative": "whether minus infinity counts",
    "at": "position of the first appended element along the axis",
    "cache": "name of the model's input that is appended to",
    "capacity": "size of the result along the axis",
    "until": "where what the cache holds after the run ends, along the axis",
    "clears": "whether there are zeros between the last element appended and `until`",
    "num_carried": "number of operands that are carried from one iteration to the next",
    "num_inputs": "number of operands besides captures; sequences give one element to each call of the body",
    "num_scanned": "number of operands that are sliced, one slice for each call of the body",
    "num_state": "number of operands that are state",
    "rounded": "whether the product is rounded before it is added to, and not once with the sum",
    "rounds": "whether the left operand is rounded to 8 bits first, block by block",
    "out_dtype": "dtype of the result, if wider than that of the operands",
    "output_axes": "for each scanned result, the axis along which slices are concatenated",
    "output_padding": "additional elements of the result, for each spatial axis",
    "output_reverse": "for each scanned result, whether it is written from its end",
    "perm": "result axis i is operand axis perm[i]",
    "positive": "whether plus infinity counts",
    "precision": "`tf32`: kernels may round float32 operands, and sums of 8-bit floats, to 10 bits of mantissa",
    "reducer": "`sum`, `prod` or `max`",
    "reduction": "how updates of one element are combined: `none` (the last one counts), `add`, `mul`, `max`, `min`",
    "reverse": "whether the operation runs from the end of the axis",
    "round_mode": "rounding of casts to float8e8m0: `up`, `down` or `nearest`",
    "saturate": "whether casts to 8-bit floats give the largest number for what is too large",
    "scales": "the dtype of a scale",
    "select_last": "whether the last of equal elements counts, else the first",
    "shape": "shape of the result",
    "sizes": "number of elements taken along each axis",
    "starts": "the index of the first element along each axis",
    "steps": "distance of elements taken along each axis; may be negative",
    "strides": "steps of the window, for each spatial axis",
    "table": "512 hexadecimal digits: the bytes of the 256 entries",
    "then_graph": "the nested graph where the condition is true",
    "to": "the dtype of the result",
    "trans_a": "whether the last two axes of `a` are swapped",
    "trans_b": "whether the last two axes of `b` are swapped",
    "count": "number of true elements of the mask",
    "centers": "whether boxes are centre and size (x, y, width, height); else two corners",
    "size": "number of bins along each spatial axis",
    "ratio": "samples of a bin along each axis; 0: as many as the bin has elements",
    "scale": "factor from coordinates of regions to indices of x",
    "offset": "subtracted from scaled coordinates",
    "zeros": "whether a block has a zero point, which is subtracted from its codes",
    "values": "one size for each element: an int, or an expression over the graph's symbols",
}

HEAD = """\
# Primitives

The operators of the [graph](ir.md), which passes rewrite and fusion rules match. They are small, so that fusion can cut
anywhere: an ONNX Softmax is five of them. This page is generated from the operator table:
`python -m tilestitch.compiler.pages.primitives > docs/primitives.md`.

```python
from tilestitch.compiler.frontend import import_model

print(import_model("mlp.onnx").graph)  # tilestitch example mlp -o mlp.onnx
```

```
  …
  %Add_7 = add(%MatMul_6, %weight_5) : float32[8,10]  node "add_2"  from "/Add_7"
  %reduce_max = reduce_max(%Add_7) {axes=[1], keepdims=true} : float32[8,1]  from "/Softmax_8"
  %sub = sub(%Add_7, %reduce_max) : float32[8,10]  from "/Softmax_8"
  %exp = exp(%sub) : float32[8,10]  from "/Softmax_8"
  %reduce_sum = reduce_sum(%exp) {axes=[1], keepdims=true} : float32[8,1]  from "/Softmax_8"
  %output = div(%exp, %reduce_sum) : float32[8,10]  node "div"  from "/Softmax_8"
```

Operands and results are `Value` objects of a `Node`; attributes are in `node.attrs`, and those in brackets may be
missing. Element-wise operators broadcast as numpy does. `graph.emit("add", a, b, origins=node.origins)` makes a node
and returns its result, whose type follows from the operator's rule. The semantics of each operator is the numpy
function of that name in `tilestitch.runtime.host`. An operator called `host.NAME` runs as the numpy function `NAME`
between kernels. Operators marked * take many cycles for an element.
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
