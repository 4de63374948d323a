"""Views and data movement, among them every way an index can be wrong."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.host.reference import onnx_outputs, run
from tilestitch.runtime.host import ALIASING, TABLE, HostError


@pytest.mark.parametrize(
    ("starts", "steps", "sizes"),
    [((0, 0), (1, 1), (5, 7)), ((4, 1), (-1, 2), (5, 3)), ((2, 6), (-2, -3), (2, 3)), ((0, 0), (1, 1), (0, 7))],
)
def test_slice_takes_start_plus_step(starts: tuple[int, ...], steps: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    x = np.arange(35).reshape(5, 7)
    index = np.ix_(*[[s + i * d for i in range(n)] for s, d, n in zip(starts, steps, sizes)])
    np.testing.assert_array_equal(run("slice", x, starts=starts, steps=steps, sizes=sizes), x[index])


def test_slice_beyond_a_size_known_only_at_run_time_is_an_error() -> None:
    with pytest.raises(HostError, match="slice"):
        run("slice", np.zeros(3), starts=(0,), steps=(1,), sizes=(4,))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize(("before", "after"), [((0, 0), (0, 0)), ((1, 2), (0, 1)), ((4, 7), (6, 9))])
@pytest.mark.parametrize("shape", [(3, 4), (1, 2)])
def test_pad_agrees_with_numpy(
    shape: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...], mode: str
) -> None:
    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    expected = np.pad(x, list(zip(before, after)), mode=mode)
    np.testing.assert_array_equal(run("pad", x, before=before, after=after, mode=mode), expected)


def test_pad_value_and_empty_dimensions() -> None:
    x = np.zeros((0, 2), np.float32)
    np.testing.assert_array_equal(
        run("pad", x, np.float32(7), before=(1, 0), after=(1, 0), mode="constant"), [[7, 7]] * 2
    )
    with pytest.raises(HostError, match="empty"):
        run("pad", x, before=(1, 0), after=(0, 0), mode="edge")


def test_iota_counts_along_its_axis() -> None:
    np.testing.assert_array_equal(run("iota", shape=(2, 3), axis=1, dtype="float16"), [[0, 1, 2]] * 2)
    np.testing.assert_array_equal(run("iota", shape=(2, 0), axis=1, dtype="int64"), np.zeros((2, 0)))


@pytest.mark.parametrize(
    "indices", [np.array(1), np.array([0, -1, 2]), np.zeros((2, 0), np.int64), np.array([[-3], [2]])]
)
@pytest.mark.parametrize("axis", [0, 1])
def test_gather_is_take(indices: np.ndarray, axis: int) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)[:, :3]
    np.testing.assert_array_equal(run("gather", x, indices, axis=axis), np.take(x, indices, axis))


def test_gather_out_of_range_names_index_and_position() -> None:
    with pytest.raises(HostError, match=r"index 3 at position \[1, 0\] is out of range for axis 0 of size 3"):
        run("gather", np.zeros((3, 2)), np.array([[0], [3]]), axis=0)
    with pytest.raises(HostError, match="index -4"):
        run("gather_elements", np.zeros(3), np.array([-4]), axis=0)
    with pytest.raises(HostError, match=r"index 2 .*axis 1 of size 2"):
        run("gather_nd", np.zeros((3, 2)), np.array([[0, 2]]), batch_dims=0)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_gather_elements_with_fewer_indices_than_elements(axis: int) -> None:
    random = np.random.default_rng(2)
    x = random.normal(size=(4, 5, 3)).astype(np.float32)
    indices = random.integers(-3, 3, size=(2, 3, 3))
    expected = np.empty(indices.shape, np.float32)
    for place in np.ndindex(*indices.shape):
        source = list(place)
        source[axis] = indices[place]
        expected[place] = x[tuple(source)]
    np.testing.assert_array_equal(run("gather_elements", x, indices, axis=axis), expected)


@pytest.mark.parametrize(
    ("batch", "shape"), [(0, (4, 2)), (0, (4,)), (1, (2, 3, 1)), (2, (2, 3, 2)), (0, (0, 1)), (1, (2, 1))]
)
def test_gather_nd_agrees_with_onnx(batch: int, shape: tuple[int, ...]) -> None:
    x = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    indices = np.random.default_rng(3).integers(0, 2, size=shape)
    if indices.size:
        (expected,) = onnx_outputs("GatherND", [x, indices], batch_dims=batch)
        np.testing.assert_array_equal(run("gather_nd", x, indices, batch_dims=batch), expected)
    else:
        assert run("gather_nd", x, indices, batch_dims=batch).shape == (0, 3, 4, 5)


def test_reshape_and_broadcast_that_do_not_fit_are_errors() -> None:
    with pytest.raises(HostError, match="cannot reshape"):
        run("reshape", np.zeros(6), shape=(4, -1))
    with pytest.raises(HostError, match="does not broadcast"):
        run("broadcast_to", np.zeros(3), shape=(2, 4))


def test_only_declared_operators_share_memory() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    zeros = np.zeros(2, np.int64)
    calls = {
        "reshape": ([x], {"shape": (3, 2)}),
        "transpose": ([x], {"perm": (1, 0)}),
        "broadcast_to": ([x], {"shape": (2, 3)}),
        "slice": ([x], {"starts": (0, 0), "steps": (1, 1), "sizes": (2, 3)}),
        "concat": ([x], {"axis": 0}),
        "pad": ([x], {"before": (0, 0), "after": (0, 0), "mode": "edge"}),
        "gather": ([x, zeros], {"axis": 0}),
        "cast": ([x], {"to": "float32"}),
        "Reshape": ([x, np.array([6])], {}),
        "Tile": ([x, np.array([1, 1])], {}),
        "Split": ([x, None], {"num_outputs": 1}),
        "Pad": ([x, np.zeros(4, np.int64)], {}),
        "Trilu": ([x], {}),
        "CenterCropPad": ([x, np.array([2, 3])], {}),
        "reduce_sum": ([x], {"axes": (), "keepdims": True}),
        "Resize": ([x, None, np.ones(2, np.float32)], {"mode": "nearest"}),
        "SequenceConstruct": ([x], {}),
        "SplitToSequence": ([x, None], {}),
        "Compress": ([x.ravel(), zeros == 0], {}),
        "Dropout": ([x, None, None], {}),
        "Unique": ([x], {}),
        "cumulative": ([x], {"axis": 0, "reducer": "sum", "exclusive": False, "reverse": False}),
    }
    for name, (operands, attrs) in calls.items():
        results = TABLE[name](operands, attrs)
        flat = [r for result in results for r in (result if isinstance(result, list) else [result])]
        shares = any(np.shares_memory(r, x) for r in flat)
        assert shares == (name in ALIASING), name
