"""Shape arithmetic as each of PyTorch's exporters writes it, for models that are built node by node.

What one exporter writes was read from its exports: `Script` is the older one (operator set 17), `Dynamo` the one that
goes through torch.export (operator set 20). A *size* is the name of a value that holds one dimension: a scalar with
`Script`, a vector of one element with `Dynamo`. Where sizes are put together, an int stands for itself.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from onnx import TensorProto, helper

from tests.models import Builder

INT64 = np.iinfo(np.int64)


class Style(Builder):
    """What a model says of shapes; the nodes differ from exporter to exporter."""

    name: str
    opset: int

    @abstractmethod
    def size(self, x: str, axis: int) -> str: ...

    @abstractmethod
    def plus(self, a: str, b: str) -> str:
        """The sum of two sizes."""

    @abstractmethod
    def vector(self, *sizes: str | int) -> str:
        """A shape of these sizes."""

    @abstractmethod
    def arange(self, size: str) -> str: ...

    @abstractmethod
    def expand(self, x: str, *sizes: str | int) -> str:
        """-1 keeps the size that there is."""

    @abstractmethod
    def outer(self, x: str, *axes: int) -> str:
        """A vector with new axes of size 1."""

    @abstractmethod
    def at(self, mask: str, rows: str, columns: str) -> str:
        """Elements of a matrix [B, T] where ROWS [B, 1, 1, 1] and COLUMNS [1, 1, 1, T] say, [B, 1, 1, T]."""

    @abstractmethod
    def swapped(self, keys: str) -> str:
        """Keys [B, H, T, D] as [B, H, D, T]."""

    @abstractmethod
    def mean(self, x: str, axes: list[int], keepdims: int = 1) -> str: ...

    @abstractmethod
    def half(self, x: str, second: bool, size: int) -> str:
        """The first or second half of SIZE elements along axis 3."""

    @abstractmethod
    def rows(self, x: str, width: int) -> str:
        """The rows of x [B, T, WIDTH] as one matrix [B * T, WIDTH]."""

    def constant(self, array: np.ndarray) -> str:
        """A scalar stays one."""
        name = super().constant(array)
        self.weights[-1].dims[:] = np.shape(array)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def number(self, value: float) -> str:
        return self.constant(np.float32(value))

    def reshape(self, x: str, *sizes: str | int) -> str:
        return self.op("Reshape", x, self.vector(*sizes))


class Script(Style):
    name, opset = "script", 17

    def size(self, x: str, axis: int) -> str:
        return self.op("Gather", self.op("Shape", x), self.constant(np.array(axis, np.int64)), axis=0)

    def plus(self, a: str, b: str) -> str:
        return self.op("Add", a, b)

    def vector(self, *sizes: str | int) -> str:
        parts = [
            self.ints(size) if isinstance(size, int) else self.op("Unsqueeze", size, self.ints(0)) for size in sizes
        ]
        return self.op("Concat", *parts, axis=0)

    def arange(self, size: str) -> str:
        end = self.op("Cast", size, to=TensorProto.INT64)
        return self.op("Range", self.constant(np.int64(0)), end, self.constant(np.int64(1)))

    def expand(self, x: str, *sizes: str | int) -> str:
        wanted = self.op("Reshape", self.vector(*sizes), self.ints(-1))
        one = helper.make_tensor("value", TensorProto.INT64, [1], [1])
        ones = self.op("ConstantOfShape", self.op("Shape", wanted), value=one)
        kept = self.op("Equal", wanted, self.op("Mul", ones, self.constant(np.int64(-1))))
        return self.op("Expand", x, self.op("Where", kept, ones, wanted))

    def outer(self, x: str, *axes: int) -> str:
        for axis in axes:
            x = self.op("Unsqueeze", x, self.ints(axis))
        return x

    def at(self, mask: str, rows: str, columns: str) -> str:
        width = self.op("Gather", self.op("Shape", mask), self.ints(1), axis=0)
        positions = self.op("Add", columns, self.op("Mul", rows, width))
        flat = self.op("Gather", self.op("Flatten", mask, axis=2), positions, axis=0)
        shape = self.op("Concat", self.op("Shape", positions), axis=0)
        found = self.op("Reshape", self.op("Reshape", flat, self.ints(-1)), shape)
        return self.op("Cast", found, to=TensorProto.BOOL)

    def swapped(self, keys: str) -> str:
        return self.op("Transpose", keys, perm=[0, 1, 3, 2])

    def mean(self, x: str, axes: list[int], keepdims: int = 1) -> str:
        return self.op("ReduceMean", x, axes=axes, keepdims=keepdims)

    def half(self, x: str, second: bool, size: int) -> str:
        middle = self.op("Div", self.size(x, 3), self.constant(np.int64(2)))
        for _ in range(2):
            middle = self.op("Cast", middle, to=TensorProto.INT64)
        middle = self.op("Unsqueeze", middle, self.ints(0))
        bounds = (middle, self.ints(INT64.max)) if second else (self.ints(0), middle)
        return self.op("Slice", x, *bounds, self.ints(3), self.ints(1))

    def rows(self, x: str, width: int) -> str:
        last = self.op("Slice", self.op("Shape", x), self.ints(-1), self.ints(INT64.max), self.ints(0))
        return self.reshape(x, -1, self.op("Squeeze", last, self.ints(0)))


class Dynamo(Style):
    name, opset = "dynamo", 20

    def size(self, x: str, axis: int) -> str:
        return self.op("Shape", x, start=axis, end=axis + 1)

    def plus(self, a: str, b: str) -> str:
        return self.op("Reshape", self.op("Add", *(self.op("Squeeze", size) for size in (a, b))), self.ints(-1))

    def vector(self, *sizes: str | int) -> str:
        return self.op("Concat", *(self.ints(size) if isinstance(size, int) else size for size in sizes), axis=0)

    def reshape(self, x: str, *sizes: str | int) -> str:
        return self.op("Reshape", x, self.vector(*sizes), allowzero=1)

    def arange(self, size: str) -> str:
        return self.op("Range", self.constant(np.int64(0)), self.op("Squeeze", size), self.constant(np.int64(1)))

    def expand(self, x: str, *sizes: str | int) -> str:
        return self.op("Expand", x, self.vector(*(1 if size == -1 else size for size in sizes)))

    def outer(self, x: str, *axes: int) -> str:
        return self.op("Unsqueeze", x, self.ints(*axes))

    def at(self, mask: str, rows: str, columns: str) -> str:
        shape = self.op("Shape", self.op("Max", rows, columns), start=0)
        both = [self.op("Unsqueeze", self.op("Expand", part, shape), self.ints(-1)) for part in (rows, columns)]
        return self.op("GatherND", mask, self.op("Concat", *both, axis=-1), batch_dims=0)

    def swapped(self, keys: str) -> str:
        shape = self.op("Shape", keys, start=0)
        last = self.op("Slice", shape, self.ints(-1), self.ints(INT64.max))
        before = self.op("Slice", shape, self.ints(-2), self.ints(-1))
        outer = self.op("Slice", shape, self.ints(INT64.min), self.ints(-2))
        matrices = self.op("Reshape", keys, self.op("Concat", self.ints(-1), before, last, axis=0))
        turned = self.op("Transpose", matrices, perm=[0, 2, 1])
        return self.op("Reshape", turned, self.op("Concat", outer, last, before, axis=0))

    def mean(self, x: str, axes: list[int], keepdims: int = 1) -> str:
        return self.op("ReduceMean", x, self.ints(*axes), keepdims=keepdims)

    def half(self, x: str, second: bool, size: int) -> str:
        bounds = (size // 2, INT64.max) if second else (0, size // 2)
        return self.op("Slice", x, *(self.ints(bound) for bound in bounds), self.ints(3), self.ints(1))

    def rows(self, x: str, width: int) -> str:
        return self.op("Reshape", x, self.ints(-1, width))


STYLES: tuple[type[Style], ...] = (Script, Dynamo)
