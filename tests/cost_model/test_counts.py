"""Counting arithmetic: of windows, against trying every place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tilestitch.compiler.ir import Graph, TensorType
from tilestitch.cost_model.counts import operations


@given(
    st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(0, 3), st.integers(0, 3), st.integers(1, 3),
    st.sampled_from(["NCX", "NXC"]),
)  # fmt: skip
def test_windows_look_at_what_is_there_only(
    size: int, kernel: int, stride: int, before: int, after: int, dilation: int, layout: str
) -> None:
    if size + before + after < dilation * (kernel - 1) + 1:
        return
    graph = Graph("pool")
    shape = (2, 3, size) if layout == "NCX" else (2, size, 3)
    x = graph.add_input("x", TensorType("float32", shape))
    y = graph.emit(
        "window_reduce", x, reducer="max", layout=layout, kernel=(kernel,), strides=(stride,), before=(before,),
        after=(after,), dilations=(dilation,),
    )  # fmt: skip
    windows = y.shape[2 if layout == "NCX" else 1]
    places = [w * stride - before + t * dilation for w in range(windows) for t in range(kernel)]
    assert y.producer is not None
    assert operations(y.producer) == 6 * sum(0 <= place < size for place in places)
