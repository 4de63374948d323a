"""Capsules are read and made as dlpack.h says; which side holds what is told apart."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from tilestitch.runtime.cuda import dlpack


class Owner:
    pass


def capsule(shape: tuple[int, ...] = (2, 3), dtype: str = "float32", owner: object = None) -> object:
    return dlpack.make(4096, 1, np.dtype(dtype), shape, owner)


def test_what_was_made_is_read() -> None:
    view = dlpack.read(capsule())
    assert view is not None
    assert (view.address, view.device, view.dtype, view.shape) == (4096, 1, np.dtype("float32"), (2, 3))
    assert view.contiguous
    view.release()


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float16", "float64", "complex64"])
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (2, 3, 4)])
def test_types_and_shapes(dtype: str, shape: tuple[int, ...]) -> None:
    view = dlpack.read(capsule(shape, dtype))
    assert view is not None
    assert (view.dtype, view.shape) == (np.dtype(dtype), shape)
    view.release()


def test_bfloat16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    view = dlpack.read(dlpack.make(64, 0, np.dtype(ml_dtypes.bfloat16), (2,), None))
    assert view is not None
    assert view.dtype == ml_dtypes.bfloat16
    view.release()


def test_types_that_dlpack_lacks() -> None:
    with pytest.raises(BufferError, match="no data type"):
        dlpack.make(64, 0, np.dtype("datetime64[s]"), (2,), None)


def test_a_capsule_is_used_once() -> None:
    once = capsule()
    view = dlpack.read(once)
    with pytest.raises(BufferError, match="used before"):
        dlpack.read(once)
    assert view is not None
    view.release()


def test_the_owner_lives_until_the_consumer_lets_go() -> None:
    owner = Owner()
    alive = weakref.ref(owner)
    taken = dlpack.read(capsule(owner=owner))
    del owner
    gc.collect()
    assert alive() is not None
    assert taken is not None
    taken.release()
    gc.collect()
    assert alive() is None


def test_a_capsule_that_is_not_taken_keeps_nothing() -> None:
    owner = Owner()
    alive = weakref.ref(owner)
    unused = capsule(owner=owner)
    del owner, unused
    gc.collect()
    assert alive() is None
    assert not dlpack._exported


def test_memory_of_the_host_is_not_taken() -> None:
    array = np.zeros(3)
    host = array.__dlpack__()
    assert dlpack.read(host) is None


def test_capsules_of_pytorch_have_this_layout() -> None:
    torch = pytest.importorskip("torch")
    assert dlpack.read(torch.zeros(3).__dlpack__()) is None  # on the host: the header was understood


@pytest.mark.parametrize(
    ("shape", "strides", "contiguous"),
    [
        ((2, 3), (3, 1), True), ((2, 3), (1, 2), False), ((1, 3), (99, 1), True), ((0, 3), (7, 7), True),
        ((2,), None, True),
    ],
)  # fmt: skip
def test_contiguity(shape: tuple[int, ...], strides: tuple[int, ...] | None, contiguous: bool) -> None:
    assert dlpack.is_contiguous(shape, strides) is contiguous
