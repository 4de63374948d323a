"""Signatures of kernels: what a launch must pass so that its kernel accesses the memory that it was compiled for, and
no other.

A kernel's symbol ends with the digest of its signature, so the machine code authenticates it: a program whose
signatures were edited, with hashes to match, has no kernel of that name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .dtypes import ITEM_BYTES
from .errors import ArtifactSchemaError
from .jsonfields import Fields
from .sizes import Size
from .symbols import Symbol
from .tensor_map import TensorMap

DIGEST_LENGTH = 16
KINDS = frozenset({"tensor", "status", "counters", "sizes"})
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(frozen=True)
class Parameter:
    """Requirements on one kernel argument.

    `kind`: a `tensor` in memory, the launch's `status` word, its `counters`, or the `sizes`: the values of the symbols.
    `nbytes`: what the kernel may access, from the argument's address on. `writes`: whether it may write there; it may
    always read. `tensor_map`: the map that it gets in place of the address.
    """

    kind: str
    dtype: str
    nbytes: Size
    writes: bool
    tensor_map: TensorMap | None = None

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"kind": self.kind, "dtype": self.dtype, "nbytes": self.nbytes, "writes": self.writes}
        return {**data, "tensor_map": None if self.tensor_map is None else self.tensor_map.to_json()}

    @staticmethod
    def from_json(data: Any, where: str) -> Parameter:
        fields = Fields(data, where)
        tensor_map = fields.take("tensor_map")
        parameter = Parameter(
            fields.one_of("kind", KINDS), fields.one_of("dtype", frozenset(ITEM_BYTES)), fields.size("nbytes"),
            fields.boolean("writes"),
            None if tensor_map is None else TensorMap.from_json(tensor_map, f"{where}.tensor_map"),
        )  # fmt: skip
        fields.done()
        return parameter


@dataclass(frozen=True)
class KernelSignature:
    """A kernel's parameters, and the extent of its launches: `extent` of `program.Launch` or `DeviceLaunch`.

    `symbols`: those of the programs that may launch it, in their order. The kernel is right for these ranges; a
    program's may be narrower.
    """

    parameters: tuple[Parameter, ...]
    extent: Mapping[str, Any]
    symbols: tuple[Symbol, ...] = ()

    @property
    def digest(self) -> str:
        """The digest that ends the kernel's symbol."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"parameters": [p.to_json() for p in self.parameters], "extent": dict(self.extent)}
        return {**data, "symbols": [symbol.to_json() for symbol in self.symbols]} if self.symbols else data

    @staticmethod
    def from_json(data: Any, where: str) -> KernelSignature:
        fields = Fields(data, where)
        signature = KernelSignature(
            fields.sequence("parameters", Parameter.from_json),
            fields.mapping("extent"),
            fields.optional_sequence("symbols", Symbol.from_json),
        )
        fields.done()
        return signature


def signatures_from_json(data: Any, where: str) -> dict[str, KernelSignature]:
    """Return the signatures by symbol. Raises `ArtifactSchemaError`, also where a symbol does not end with its
    signature's digest.
    """
    if not isinstance(data, dict):
        raise ArtifactSchemaError(f"{where} is no object")
    signatures = {}
    for symbol, entry in data.items():
        if not _SYMBOL.fullmatch(symbol):
            raise ArtifactSchemaError(f"{where} names {symbol!r}, which is no symbol of a kernel")
        signature = KernelSignature.from_json(entry, f"{where}[{symbol!r}]")
        if not symbol.endswith(signature.digest):
            raise ArtifactSchemaError(
                f"{where}[{symbol!r}] is not what the kernel was compiled with; the digest of this one is "
                f"{signature.digest}"
            )
        signatures[symbol] = signature
    return signatures
