"""Row-wise kernels that store their result in another shape."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest

from tests.codegen.cuda.cuda_harness import check
from tests.codegen.test_contraction_groups import Sketch
from tests.strategies import feeds
from tilestitch.compiler.ir import Node, Value
from tilestitch.compiler.ir.types import to_numpy_dtype
from tilestitch.passes import PassContext, WhyNot, make_plan
from tilestitch.passes.fusion.clusters import Fusion
from tilestitch.passes.fusion.rules.builtin import Fuse
from tilestitch.passes.plan.target import TargetInfo


def centred(s: Sketch, shape: tuple[int, ...], axes: tuple[int, ...], dtype: str = "float32") -> Value:
    x = s.input(*shape, dtype=dtype)
    return s.graph.emit("sub", x, s.graph.emit("reduce_max", x, axes=axes, keepdims=True))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize(
    ("shape", "axes", "target"),
    [
        ((3, 4, 5), (2,), (12, 5)),
        ((3, 4, 5), (2,), (60,)),
        ((3, 4, 5), (1,), (3, 20)),
        ((17, 6), (0,), (2, 51)),
        ((2, 3, 7, 5), (2, 3), (2, 21, 5)),
        ((5, 1), (0,), (1, 5)),
        ((2, 100_000), (1,), (4, 50_000)),
    ],
)
def test_the_result_is_stored_in_another_shape(
    shape: tuple[int, ...], axes: tuple[int, ...], target: tuple[int, ...], dtype: str
) -> None:
    s = Sketch()
    s.check(s.graph.emit("reshape", centred(s, shape, axes, dtype), shape=target), pipeline="")
    assert len(make_plan(s.graph, PassContext()).groups) == 1


def test_both_shapes_may_be_wanted() -> None:
    s = Sketch()
    y = centred(s, (3, 4, 5), (2,))
    s.check(y, s.graph.emit("reshape", y, shape=(12, 5)), pipeline="")
    assert len(make_plan(s.graph, PassContext()).groups) == 1


def test_a_reshape_that_only_kernels_read_is_an_alias_and_stored_once() -> None:
    s = Sketch()
    y = centred(s, (3, 4, 5), (2,))
    flat = s.graph.emit("reshape", y, shape=(12, 5))
    s.check(y, s.graph.emit("matmul", flat, s.weight(5, 3)), pipeline="")
    groups = make_plan(s.graph, PassContext()).groups
    assert next(g.outputs for g in groups) == (y.name,)


TURNED = [
    # rows in shape, reduced axes, shape in between, permutation: results of group normalisation as a convolution reads
    # them; rows across; a row that several warps share; one row
    ((1, 4, 40), (2,), (1, 8, 4, 5), (0, 2, 3, 1)),
    ((6, 10), (0,), (6, 10), (1, 0)),
    ((7, 5, 3), (1, 2), (7, 15), (1, 0)),
    ((2, 9000), (1,), (2, 90, 100), (2, 0, 1)),
    ((1, 5), (1,), (1, 5, 1), (2, 1, 0)),
]


def turned(s: Sketch, shape: tuple[int, ...], axes: tuple[int, ...], between: tuple[int, ...], perm: tuple[int, ...],
           dtype: str) -> tuple[Value, Value]:  # fmt: skip
    """A result of rows in a shape of its own, and that with other axes first."""
    flat = s.graph.emit("reshape", centred(s, shape, axes, dtype), shape=between)
    return flat, s.graph.emit("transpose", flat, perm=perm)


@dataclass(frozen=True)
class WholeGraph:
    """One kernel, whatever it costs."""

    name: ClassVar[str] = "whole_graph"

    def propose(self, state: Fusion) -> Iterator[Fuse]:
        yield Fuse(tuple(state.nodes), forced=True)

    def forbid(self, state: Fusion, nodes: Sequence[Node]) -> WhyNot | None:
        return None


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("shape", "axes", "between", "perm"), TURNED)
def test_the_result_is_stored_with_its_axes_moved(
    shape: tuple[int, ...], axes: tuple[int, ...], between: tuple[int, ...], perm: tuple[int, ...], dtype: str
) -> None:
    s = Sketch()
    s.check(*turned(s, shape, axes, between, perm, dtype), pipeline="", planner="none", rules=(WholeGraph(),))
    context = PassContext(options={"planner": "none"}, rules=(WholeGraph(),))
    assert len(make_plan(s.graph, context).groups) == 1


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("shape", "axes", "between", "perm"), TURNED)
def test_the_result_is_stored_with_its_axes_moved_on_cuda(
    shape: tuple[int, ...], axes: tuple[int, ...], between: tuple[int, ...], perm: tuple[int, ...], dtype: str
) -> None:
    s = Sketch()
    s.graph.outputs = [turned(s, shape, axes, between, perm, dtype)[1]]
    assert len(make_plan(s.graph, PassContext(target=TargetInfo("cuda"))).groups) == 1
    inputs = feeds(s.graph)
    check(s.graph, {v.name: inputs[v.name].astype(to_numpy_dtype(v.dtype)) for v in s.graph.inputs})


def test_on_a_gpu_a_transpose_that_follows_joins_the_rows() -> None:
    s = Sketch()
    _, moved = turned(s, (1, 4, 40), (2,), (1, 8, 4, 5), (0, 2, 3, 1), "float32")
    s.graph.outputs = [moved]
    counts = [len(make_plan(s.graph, PassContext(TargetInfo(target))).groups) for target in ("cuda", "cpu")]
    assert counts == [1, 2]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("shape", "axes", "target"),
    [
        ((3, 4, 5), (2,), (12, 5)),
        ((3, 4, 8), (1,), (3, 32)),
        ((2, 3, 7, 5), (2, 3), (2, 21, 5)),
        ((1, 9000), (1,), (9, 1000)),
    ],
)
def test_on_cuda(shape: tuple[int, ...], axes: tuple[int, ...], target: tuple[int, ...], dtype: str) -> None:
    s = Sketch()
    s.graph.outputs = [s.graph.emit("reshape", centred(s, shape, axes, dtype), shape=target)]
    assert len(make_plan(s.graph, PassContext(target=TargetInfo("cuda"))).groups) == 1
    inputs = feeds(s.graph)
    check(s.graph, {v.name: inputs[v.name].astype(to_numpy_dtype(v.dtype)) for v in s.graph.inputs})
