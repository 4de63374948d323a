"""Random windows and paddings, negative ones and ones larger than the kernel included: Pad, pools and convolutions are
what a plain loop over the operand makes of ONNX's definition.

50 of each by default; `make fuzz` draws 2000.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from tests.frontend.checks import assert_close, ints, node_model, run
from tilestitch.compiler import compile_model
from tilestitch.compiler.frontend.errors import ConversionError
from tilestitch.runtime import load

fuzzing = settings(max_examples=max(50, settings().max_examples), suppress_health_check=list(HealthCheck))
compiling = settings(max_examples=max(8, settings().max_examples // 16), suppress_health_check=list(HealthCheck))
SPECIAL = (-np.inf, np.inf, -0.0, float(np.finfo(np.float32).min))


class Refused(Exception):
    """ONNX does not define the result."""


@st.composite
def operands(draw: st.DrawFn, sizes: st.SearchStrategy[int], least_rank: int = 0) -> np.ndarray:
    """Small numbers, few of which differ; sometimes half of them infinite or the least there is."""
    shape = tuple(draw(st.lists(sizes, min_size=least_rank, max_size=2)))
    random = np.random.default_rng(draw(st.integers(0, 99)))
    x = random.integers(-4, 5, shape).astype(np.float32)
    special = np.where(random.random(shape) < 0.5, random.choice(np.array(SPECIAL, np.float32), shape), x)
    return draw(st.sampled_from([x, x, special]))


# -- Pad ---------------------------------------------------------------------------------------------------------------


def padded(x: np.ndarray, before: Sequence[int], after: Sequence[int], mode: str, fill: float) -> np.ndarray:
    """Negative pads remove elements; what is left is padded. Where they remove all, only what is filled in is left."""
    shape = tuple(b + d + a for b, d, a in zip(before, x.shape, after, strict=True))
    if min(shape, default=0) < 0:
        raise Refused
    if mode == "constant":
        result = np.full(shape, fill, x.dtype)
        for index in np.ndindex(shape):
            place = tuple(i - b for i, b in zip(index, before, strict=True))
            if all(0 <= p < d for p, d in zip(place, x.shape, strict=True)):
                result[index] = x[place]
        return result
    if any(min(b, 0) + min(a, 0) < -d for b, d, a in zip(before, x.shape, after, strict=True)):
        raise Refused
    cropped = x[tuple(slice(max(-b, 0), d + min(a, 0)) for b, d, a in zip(before, x.shape, after, strict=True))]
    width = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
    if any(d == 0 and sum(w) for d, w in zip(cropped.shape, width, strict=True)):
        raise Refused
    return np.pad(cropped, width, mode=mode) if width else cropped  # type: ignore[call-overload]


@st.composite
def pads(draw: st.DrawFn) -> tuple[np.ndarray, list[int], list[int], str]:
    x = draw(operands(st.integers(0, 4)))
    before, after = ([draw(st.integers(-5, 5)) for _ in x.shape] for _ in range(2))
    return x, before, after, draw(st.sampled_from(["constant", "constant", "edge", "reflect", "wrap"]))


@given(case=pads())
@fuzzing
def test_pad(case: tuple[np.ndarray, list[int], list[int], str]) -> None:
    x, before, after, mode = case
    fill = np.float32(7.5)
    model = node_model("Pad", [x, ints(*before, *after), fill], {"mode": mode}, constants=(1,), outputs=1)
    agree(lambda: run(model, {"x0": x, "x2": fill}), lambda: [padded(x, before, after, mode, 7.5)])


# -- windows -----------------------------------------------------------------------------------------------------------


Window = dict[str, list[int]]


def taps(spatial: Sequence[int], window: Window, index: Sequence[int]) -> list[tuple[int, ...] | None]:
    """The places that a window covers, in order; None in the padding."""
    found = []
    for tap in product(*(range(k) for k in window["kernel_shape"])):
        parts = zip(index, window["strides"], tap, window["dilations"], window["pads"], strict=False)
        place = tuple(i * s + t * d - b for i, s, t, d, b in parts)
        found.append(place if all(0 <= p < n for p, n in zip(place, spatial, strict=True)) else None)
    return found


def positions(spatial: Sequence[int], window: Window, ceil: bool) -> tuple[int, ...]:
    """How many windows there are along each axis."""
    rank = len(spatial)
    if min(window["pads"]) < 0:
        raise Refused
    counts = []
    for i, size in enumerate(spatial):
        before, after, stride = window["pads"][i], window["pads"][rank + i], window["strides"][i]
        room = size + before + after - (window["kernel_shape"][i] - 1) * window["dilations"][i] - 1
        if room + (stride - 1 if ceil else 0) < 0:  # a partial window may be the only one
            raise Refused
        count = (-(-room // stride) if ceil else room // stride) + 1
        counts.append(count - 1 if ceil and (count - 1) * stride >= size + before else count)
    return tuple(counts)


def pooled(op: str, x: np.ndarray, window: Window, ceil: bool, include: bool) -> list[np.ndarray]:
    """Values and, for MaxPool, the places in the flattened operand where they are first; masked where there is none."""
    spatial = x.shape[2:]
    out = positions(spatial, window, ceil)
    y, where = np.zeros((*x.shape[:2], *out), np.float32), np.zeros((*x.shape[:2], *out), np.int64)
    for n, c, *index in np.ndindex(y.shape):
        covered = taps(spatial, window, index)
        places = [p for p in covered if p is not None]
        values = [float(x[(n, c, *p)]) for p in places]
        at = (n, c, *index)
        if op == "MaxPool":
            y[at] = max(values, default=-np.inf)
            best = places[int(np.argmax(values))] if values else None
            where[at] = -1 if best is None else np.ravel_multi_index((n, c, *best), x.shape)
        elif op == "LpPool":
            y[at] = np.sqrt(np.sum(np.square(np.asarray(values, np.float64))))
        else:
            y[at] = np.sum(values) / max(_counted(spatial, window, index) if include else len(values), 1)
    return [y, np.ma.masked_less(where, 0)] if op == "MaxPool" else [y]


def _counted(spatial: Sequence[int], window: Window, index: Sequence[int]) -> int:
    """Taps on the operand or its padding; `ceil_mode` may open a window that reaches beyond both."""
    rank = len(spatial)
    wide = [n + window["pads"][i] + window["pads"][rank + i] for i, n in enumerate(spatial)]
    return sum(p is not None for p in taps(wide, {**window, "pads": [0] * 2 * rank}, index))


@st.composite
def windows(draw: st.DrawFn) -> tuple[np.ndarray, Window]:
    image = draw(operands(st.integers(1, 5), least_rank=1))
    rank = image.ndim
    least = draw(st.sampled_from([0, 0, 0, -2]))
    window = {
        "kernel_shape": [draw(st.integers(1, 3)) for _ in range(rank)],
        "strides": [draw(st.integers(1, 3)) for _ in range(rank)],
        "dilations": [draw(st.integers(1, 2)) for _ in range(rank)],
        "pads": [draw(st.integers(least, 4)) for _ in range(2 * rank)],
    }
    return np.stack([image, -image])[None], window


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@given(case=windows(), ceil=st.booleans(), include=st.booleans())
@fuzzing
def test_pools(op: str, case: tuple[np.ndarray, Window], ceil: bool, include: bool) -> None:
    x, window = case
    if op != "MaxPool":  # of infinities of both signs there is no sum
        x = np.clip(x, -8, 8)
    attrs: dict[str, Any] = {**window, "ceil_mode": int(ceil)}
    if op == "AveragePool":
        attrs["count_include_pad"] = int(include)
    model = node_model(op, [x], attrs, outputs=["y0", "y1"] if op == "MaxPool" else ["y0"])
    agree(lambda: run(model, {"x0": x}), lambda: pooled(op, x, window, ceil, include))


@given(case=windows(), out=st.integers(1, 3), grouped=st.booleans())
@fuzzing
def test_conv(case: tuple[np.ndarray, Window], out: int, grouped: bool) -> None:
    x, window = np.clip(case[0], -8, 8), case[1]
    groups = 2 if grouped else 1
    w = np.random.default_rng(out).integers(-2, 3, (out * groups, 2 // groups, *window["kernel_shape"]))
    w = w.astype(np.float32)
    model = node_model("Conv", [x, w], {**window, "group": groups})
    agree(lambda: run(model, {"x0": x, "x1": w}), lambda: [convolved(x, w, window, groups)])


def convolved(x: np.ndarray, w: np.ndarray, window: Window, groups: int) -> np.ndarray:
    out = positions(x.shape[2:], window, ceil=False)
    y = np.zeros((x.shape[0], w.shape[0], *out), np.float32)
    for n, m, *index in np.ndindex(y.shape):
        first = m // (w.shape[0] // groups) * w.shape[1]
        for tap, place in zip(np.ndindex(w.shape[2:]), taps(x.shape[2:], window, index), strict=True):
            if place is not None:
                y[(n, m, *index)] += x[(n, slice(first, first + w.shape[1]), *place)] @ w[(m, slice(None), *tap)]
    return y


@pytest.mark.parametrize("target", ["cpu", "emulator"])
@given(case=windows(), ceil=st.booleans(), op=st.sampled_from(["MaxPool", "AveragePool"]))
@compiling
def test_compiled_pools(target: str, case: tuple[np.ndarray, Window], ceil: bool, op: str) -> None:
    x, window = case
    if op != "MaxPool":
        x = np.clip(x, -8, 8)
    model = node_model(op, [x], {**window, "ceil_mode": int(ceil)})

    def compiled() -> list[Any]:
        with load(compile_model(model, target).to_bytes(), device=target) as module:
            return list(module.run({"x0": x}).values())

    agree(compiled, lambda: pooled(op, x, window, ceil, include=False)[:1])


def agree(actual: Callable[[], list[Any]], expected: Callable[[], list[Any]]) -> None:
    """Both give the same results, but for elements that are masked, or both refuse."""
    try:
        wanted = expected()
    except Refused:
        with pytest.raises(ConversionError, match=r"pads|window"):
            actual()
        return
    note(f"expected {wanted}")
    for got, want in zip(actual(), wanted, strict=True):
        assert_close(np.where(np.ma.getmaskarray(want), np.ma.getdata(want), got), np.ma.getdata(want))
