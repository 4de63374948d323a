"""Where views of an input lie in its memory: as numpy says, where sizes are known, and for all sizes alike."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.compiler.ir.sizes import Symbol, at, size_of
from tilestitch.passes.plan.access.strided import strided


@st.composite
def views(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[str, tuple[int, ...]]]]:
    """A shape, and transposes and reshapes of it one after the other."""
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)))
    chain: list[tuple[str, tuple[int, ...]]] = []
    now = shape
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            perm = tuple(draw(st.permutations(range(len(now)))))
            chain.append(("transpose", perm))
            now = tuple(now[d] for d in perm)
            continue
        target = list(now)
        for _ in range(draw(st.integers(1, 2))):
            place = draw(st.integers(0, len(target)))
            if place + 1 < len(target) and draw(st.booleans()):
                target[place : place + 2] = [target[place] * target[place + 1]]
            elif place < len(target) and target[place] % 2 == 0:
                target[place : place + 1] = [2, target[place] // 2]
            else:
                target.insert(place, 1)
        chain.append(("reshape", tuple(target)))
        now = tuple(target)
    return shape, chain


@given(views())
@settings(max_examples=200, deadline=None)
def test_strides_are_those_of_numpy(drawn: tuple[tuple[int, ...], list[tuple[str, tuple[int, ...]]]]) -> None:
    shape, chain = drawn
    graph = Graph("g")
    x = value = graph.add_input("x", TensorType("int8", shape))
    array: np.ndarray | None = np.zeros(shape, np.int8)
    for op, argument in chain:
        value = graph.emit(op, value, **{"perm" if op == "transpose" else "shape": argument})
        if array is not None and op == "transpose":
            array = array.transpose(argument)
        elif array is not None:
            array = _without_copy(array, argument)
    found = strided(graph.nodes, [x], value)
    assert (found is None) == (array is None)
    if found is not None and array is not None:
        assert found.shape == array.shape
        # NumPy gives axes of one element any stride, and nothing is read by it.
        assert [s for s, d in zip(found.strides, found.shape) if d != 1] == [
            s for s, d in zip(array.strides, array.shape) if d != 1
        ]


def _without_copy(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    result = array.view()
    try:
        result.shape = shape
    except AttributeError:
        return None
    return result


def test_heads_of_open_length_lie_evenly() -> None:
    """[b, s, 24] as [b, s, 3, 8], turned to [b, 3, s, 8]: as many elements from one head to the next at all sizes."""
    batch, length = Symbol("b", 1, 64), Symbol("s", 1, 1000)
    graph = Graph("g")
    graph.symbols = (batch, length)
    b, s = size_of(batch), size_of(length)
    x = graph.add_input("x", TensorType("float32", (b, s, 24)))
    split = graph.emit("reshape", x, shape=(b, s, 3, 8))
    heads = graph.emit("transpose", split, perm=(0, 2, 1, 3))
    found = strided(graph.nodes, [x], heads)
    assert found is not None
    assert [at(stride, {"b": 2, "s": 5}) for stride in found.strides] == [120, 8, 24, 1]
    assert found.run(-1, 8) == 8
    assert strided(graph.nodes, [x], graph.emit("reshape", heads, shape=(b, 3 * s * 8))) is None
