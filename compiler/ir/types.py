"""Types of values: tensors of static, open or unknown dimensions, and the host-only sequences, optionals and maps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from .claims import Claim, allowed, make, may_be_equal
from .errors import IRError
from .sizes import Size, as_size, bounds_of, is_open, over, perhaps_empty, size_of, symbols_of

Dim: TypeAlias = "Size | str"
"""A size, which may be an expression over symbols (`sizes`), or a name for a size that only a run can tell."""
Shape: TypeAlias = tuple[Dim, ...]

UNKNOWN = "?"
"""A dimension unknown at compile time; two of them need not be equal."""

# Bits of one element, and its class in arithmetic rules.
_DTYPES: dict[str, tuple[int, str]] = {
    "float64": (64, "float"),
    "float32": (32, "float"),
    "float16": (16, "float"),
    "bfloat16": (16, "float"),
    "float8_e4m3fn": (8, "float"),
    "float8_e4m3fnuz": (8, "float"),
    "float8_e5m2": (8, "float"),
    "float8_e5m2fnuz": (8, "float"),
    "float8_e8m0fnu": (8, "float"),
    "float4_e2m1fn": (4, "float"),
    "int64": (64, "int"),
    "int32": (32, "int"),
    "int16": (16, "int"),
    "int8": (8, "int"),
    "int4": (4, "int"),
    "int2": (2, "int"),
    "uint64": (64, "uint"),
    "uint32": (32, "uint"),
    "uint16": (16, "uint"),
    "uint8": (8, "uint"),
    "uint4": (4, "uint"),
    "uint2": (2, "uint"),
    "bool": (8, "bool"),
    "complex64": (64, "complex"),
    "complex128": (128, "complex"),
    "string": (64, "string"),
}

NUMPY_DTYPES = frozenset(
    d
    for d, (bits, kind) in _DTYPES.items()
    if bits >= 8
    and kind != "string"
    and d not in {"bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"}
)
"""dtypes that numpy knows without ml_dtypes."""


HALVES = frozenset({"float16", "bfloat16"})
"""Storage types that kernels compute with in float32."""

SMALL_FLOATS = frozenset({"float8_e4m3fn", "float8_e5m2"})
"""8-bit floats that kernels convert, move and multiply; they are float32 in registers."""


def is_dtype(name: str) -> bool:
    return name in _DTYPES


def dtype_kind(dtype: str) -> str:
    """Return the class of a dtype: float, int, uint, bool, complex or string."""
    return _DTYPES[dtype][1]


def is_float(dtype: str) -> bool:
    return _DTYPES[dtype][1] == "float"


def is_integer(dtype: str) -> bool:
    return _DTYPES[dtype][1] in ("int", "uint")


def storage_bytes(dtype: str) -> int:
    """Return the bytes that one element takes in memory; sub-byte types are stored one element a byte, as ml_dtypes
    does.
    """
    return max(1, _DTYPES[dtype][0] // 8)


def compute_dtype(dtype: str) -> str:
    """Return the dtype in which kernels compute with elements of `dtype`: smaller floats are widened to float32."""
    return "float32" if dtype in HALVES or dtype in SMALL_FLOATS else dtype


def to_numpy_dtype(dtype: str) -> np.dtype:
    """Return the numpy dtype that holds `dtype` (ml_dtypes supplies the ones numpy lacks; strings are objects)."""
    if dtype == "string":
        return np.dtype(object)
    if dtype in NUMPY_DTYPES:
        return np.dtype(dtype)
    if dtype not in _DTYPES:
        raise IRError(f"unknown dtype {dtype!r}; known: {', '.join(sorted(_DTYPES))}")
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, dtype))


def from_numpy_dtype(dtype: np.dtype) -> str:
    if dtype.kind in "OUS" or dtype.kind == "T":
        return "string"
    if dtype.name in _DTYPES:
        return dtype.name
    raise IRError(f"numpy dtype {dtype} has no counterpart here; known: {', '.join(sorted(_DTYPES))}")


@dataclass(frozen=True)
class TensorType:
    """A dense tensor. `shape` holds sizes, names of dimensions that only a run can tell, and `UNKNOWN`.

    Derived properties are cached: planning reads them millions of times.
    """

    dtype: str
    shape: Shape

    def __post_init__(self) -> None:
        if self.dtype not in _DTYPES:
            raise IRError(f"unknown dtype {self.dtype!r}; known: {', '.join(sorted(_DTYPES))}")
        object.__setattr__(self, "shape", tuple(d if isinstance(d, str) else as_size(d) for d in self.shape))
        if any(isinstance(d, int) and d < 0 for d in self.shape):
            raise IRError(f"negative dimension in shape {self.shape}; use a symbol name for an unknown size")

    @cached_property
    def _hash(self) -> int:
        return hash((self.dtype, self.shape))

    def __hash__(self) -> int:
        return self._hash

    @property
    def rank(self) -> int:
        return len(self.shape)

    @cached_property
    def is_static(self) -> bool:
        """Whether every dimension is a number."""
        return all(isinstance(d, int) for d in self.shape)

    @cached_property
    def is_sized(self) -> bool:
        """Whether every dimension is a number or an expression over symbols."""
        return not any(isinstance(d, str) for d in self.shape)

    @cached_property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as numbers; IRError if a dimension is not one."""
        if not self.is_static:
            raise IRError(f"shape {self} is not static; give the sizes with --shape NAME=…")
        return self.sizes

    @cached_property
    def sizes(self) -> tuple[Size, ...]:
        """The shape as numbers and expressions; IRError if a dimension is neither."""
        if not self.is_sized:
            raise IRError(f"shape {self} has dimensions that only a run can tell; give the sizes with --shape NAME=…")
        return tuple(d for d in self.shape if not isinstance(d, str))

    @cached_property
    def num_elements(self) -> Size:
        count: Size = 1
        for d in self.sizes:
            count *= d
        return count

    @property
    def always_empty(self) -> bool:
        """Whether there are no elements, at any size: nothing is computed or stored."""
        count = self.num_elements
        return bounds_of(count)[1] <= 0 and bounds_of(perhaps_empty(count))[1] <= 0

    @cached_property
    def nbytes(self) -> Size:
        return self.num_elements * storage_bytes(self.dtype)

    def with_shape(self, shape: Shape) -> TensorType:
        return TensorType(self.dtype, shape)

    def with_dtype(self, dtype: str) -> TensorType:
        return TensorType(dtype, self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(str(d) for d in self.shape)}]"


@dataclass(frozen=True, slots=True)
class SequenceType:
    """An ONNX sequence; exists between host steps only."""

    element: Type

    def __str__(self) -> str:
        return f"seq<{self.element}>"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """An ONNX optional, or (`element` None) the absent value; exists between host steps only."""

    element: Type | None

    def __str__(self) -> str:
        return f"optional<{self.element if self.element is not None else ''}>"


@dataclass(frozen=True, slots=True)
class AnyRankTensor:
    """A tensor whose rank is unknown at compile time (host steps only)."""

    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[*]"


@dataclass(frozen=True, slots=True)
class MapType:
    """An ONNX map of keys (`int64` or `string`) to single values, both by dtype; exists between host steps only."""

    key: str
    value: str

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


Type: TypeAlias = "TensorType | SequenceType | OptionalType | MapType | AnyRankTensor"


def is_static_tensor(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.is_static


def is_sized_tensor(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.is_sized


def dims_compatible(a: Dim, b: Dim) -> bool:
    """Return whether two dimensions may denote the same size (one that only a run can tell may be anything)."""
    return isinstance(a, str) or isinstance(b, str) or may_be_equal(a, b)


def types_compatible(a: Type, b: Type) -> bool:
    """Return whether a value of type `a` may be used where `b` is declared; symbolic dimensions match anything."""
    if isinstance(a, (TensorType, AnyRankTensor)) and isinstance(b, (TensorType, AnyRankTensor)):
        if a.dtype != b.dtype:
            return False
        if isinstance(a, AnyRankTensor) or isinstance(b, AnyRankTensor):
            return True
        return a.rank == b.rank and all(dims_compatible(x, y) for x, y in zip(a.shape, b.shape, strict=True))
    if isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return types_compatible(a.element, b.element)
    if isinstance(a, OptionalType) and isinstance(b, OptionalType):
        return a.element is None or b.element is None or types_compatible(a.element, b.element)
    return isinstance(a, MapType) and a == b


def broadcast_shapes(*shapes: Shape) -> Shape:
    """Return the shape by numpy broadcasting; IRError if two known sizes clash. Open sizes are assumed equal, or 1 if
    they cannot be, or are at most 1 and others are not.
    """
    rank = max((len(s) for s in shapes), default=0)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(_broadcast_dim(dims, shapes) for dims in zip(*padded, strict=True)) if rank else ()


def _broadcast_dim(dims: tuple[Dim, ...], shapes: tuple[Shape, ...]) -> Dim:
    most = {d: bounds_of(d)[1] for d in dims if not isinstance(d, str) and d != 1}
    longer = max(most.values(), default=1) > 1
    surely = max((bounds_of(d)[0] for d in most), default=1) > 1

    def is_1(size: Size) -> bool:
        return _may_be_1(size) or _narrowed_to_1(size) or (surely and may_be_equal(size, 1))

    known = [d for d, high in most.items() if high != 1 or not longer or not is_1(d)]
    first = next((d for d in known if not is_open(d)), next(iter(known), None))
    if first is not None:
        if not all(may_be_equal(first, d, joins=True) or _may_be_1(d) for d in known):
            raise IRError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
        return first
    symbols = {d for d in dims if isinstance(d, str)}
    if not symbols:
        return 1
    return symbols.pop() if len(symbols) == 1 else UNKNOWN


def _may_be_1(size: Size) -> bool:
    """Return whether a size is a symbol that may be 1: if so, that is claimed, and it is 1 from then on. Derived
    expressions do not count, as their operands would be read as if they were longer.
    """
    return any(size_of(symbol) == size for symbol in symbols_of([size])) and may_be_equal(size, 1)


def _narrowed_to_1(size: Size) -> bool:
    """Return whether an expression of one symbol is 1 unless that is 0: if so, that is claimed, as for the first of a
    found number of elements, `min(1, found)`.
    """
    claim = Claim(size - 1, exact=True)
    narrow = {symbol.name: allowed(symbol, claim) for symbol in symbols_of([size]) if symbol.low == 0}
    if len(narrow) != 1 or bounds_of(over(size, narrow)) != (1, 1):
        return False
    make(claim)
    return True
