"""MatMul, Gemm and Einsum."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.checks import assert_close, check_node, floats, ints, node_model, run


@pytest.mark.parametrize(("a", "b"), [
    ((5,), (5,)), ((5,), (5, 3)), ((4, 5), (5,)), ((4, 5), (5, 3)), ((2, 1, 4, 5), (3, 5, 2)), ((2, 4, 5), (5,)),
    ((5,), (2, 5, 3)), ((0, 5), (5, 3)), ((4, 0), (0, 3)), ((1, 1), (1, 1)),
])  # fmt: skip
def test_matmul_of_any_ranks(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check_node("MatMul", [floats(*a), floats(*b, seed=1)])


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("c", [None, (), (3,), (7, 1), (7, 3)])
def test_gemm(trans_a: int, trans_b: int, c: tuple[int, ...] | None) -> None:
    a = floats(5, 7) if trans_a else floats(7, 5)
    b = floats(3, 5, seed=1) if trans_b else floats(5, 3, seed=1)
    operands = [a, b] if c is None else [a, b, np.asarray(floats(*c, seed=2))]
    check_node("Gemm", operands, {"transA": trans_a, "transB": trans_b, "alpha": 0.5, "beta": 2.0})


def test_gemm_keeps_the_transposition_in_the_matmul() -> None:
    imported = check_node("Gemm", [floats(2, 5), floats(3, 5, seed=1)], {"transB": 1}, constants={1})
    (node,) = imported.graph.nodes
    assert node.op == "matmul" and node.attrs == {"trans_b": True}


@pytest.mark.parametrize(("equation", "shapes"), [
    ("ij,jk->ik", [(2, 3), (3, 5)]), ("ij,jk", [(2, 3), (3, 5)]), ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
    ("ii->i", [(4, 4)]), ("ii", [(4, 4)]), ("iij->j", [(3, 3, 2)]), ("ij->ji", [(2, 3)]), ("ij->", [(2, 3)]),
    ("i,j->ij", [(2,), (3,)]), ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]), ("...ii->...i", [(2, 3, 3)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]), ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ("abc,cd->dab", [(2, 3, 4), (4, 5)]), ("i...,i...->...", [(3, 2), (3, 4, 2)]), ("iji,jk->ki", [(2, 3, 2), (3, 4)]),
    ("ab,ab->ab", [(2, 3), (2, 3)]), ("ab,a->b", [(2, 3), (2,)]), (" i j , j -> i ", [(2, 3), (3,)]),
    ("a,a->", [(5,), (5,)]), ("iiii->i", [(3, 3, 3, 3)]),
])  # fmt: skip
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    operands = [floats(*shape, seed=i) for i, shape in enumerate(shapes)]
    model = node_model("Einsum", operands, {"equation": equation})
    (y,) = run(model, {f"x{i}": v for i, v in enumerate(operands)})
    assert_close(y, np.asarray(np.einsum(equation.replace(" ", ""), *operands), np.float32))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("zero_points", ["none", "scalars", "vectors"])
def test_matmul_integer(dtype: str, zero_points: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 100, s).astype(dtype) for s in ((4, 5), (5, 3)))
    given = {
        "none": [],
        "scalars": [np.array(7, dtype), np.array(3, dtype)],
        "vectors": [ints(1, 2, 3, 4, dtype=dtype), ints(5, 6, 7, dtype=dtype)],
    }[zero_points]
    model = node_model("MatMulInteger", [a, b, *given])
    (y,) = run(model, {f"x{i}": v for i, v in enumerate([a, b, *given])})
    wide_a, wide_b = a.astype(np.int32), b.astype(np.int32)
    if given:
        wide_a = wide_a - (given[0].reshape(-1, 1)).astype(np.int32)
        wide_b = wide_b - given[1].astype(np.int32)
    assert_close(y, wide_a @ wide_b)
