"""The artifact's tensors: constants unchanged, and in the layouts of kernels."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tilestitch.compiler.ir import Value
from tilestitch.compiler.ir.text import digest
from tilestitch.runtime.safetensors import Tensor, TensorOnDemand

from .launch import PackedArg

MOST_BYTES_KEPT = 1 << 20
"""Largest packed constant to keep: a larger one is packed when it is written, so that memory never holds all of
them.
"""


@dataclass
class TensorTable:
    """The artifact's tensors by name; equal data is stored once, whatever its names."""

    arrays: dict[str, Tensor] = field(default_factory=dict)
    _by_digest: dict[str, str] = field(default_factory=dict)
    _packed: dict[tuple[int, str], tuple[Value, str]] = field(default_factory=dict)

    def add(self, hint: str, array: np.ndarray) -> str:
        """Store `array` under a name made from `hint`; returns the name."""
        return self._store(hint, digest(array), lambda: array)

    def packed(self, value: Value, arg: PackedArg) -> str:
        """Store a constant in its kernel's layout, once for equal data and layout; returns the name."""
        key = id(value), arg.key
        if key not in self._packed:
            data = value.data
            assert data is not None
            name = self._store(f"{value.name}.packed", f"{digest(data)}:{arg.key}", lambda: _arranged(data, arg))
            self._packed[key] = value, name  # keeps the value alive, so that its id is not reused
        return self._packed[key][1]

    def _store(self, hint: str, key: str, make: Callable[[], Tensor]) -> str:
        if key not in self._by_digest:
            name, count = hint, 1
            while name in self.arrays:
                count += 1
                name = f"{hint}.{count}"
            self.arrays[name] = make()
            self._by_digest[key] = name
        return self._by_digest[key]


def _arranged(data: np.ndarray, arg: PackedArg) -> Tensor:
    tensor = TensorOnDemand(data.dtype, arg.shape or (), lambda: np.ascontiguousarray(arg.arrange(data)))
    return tensor if arg.shape is not None and tensor.nbytes > MOST_BYTES_KEPT else tensor.make()
