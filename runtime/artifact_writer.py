"""Writer of `.tsm` artifacts, which `artifact` reads. `docs/artifact.md` describes the file.

write_artifact("model.tsm", ArtifactContents(programs=…, weights=…, kernels={CPU_LIBRARY: link(objects, exports)}, …))
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from . import archive, safetensors
from .buffers import byte_view
from .dtypes import dtype_name
from .jsonfields import finite_json, parse_json
from .kernel_signature import KernelSignature
from .manifest import Manifest, MemberInfo, PluginInfo, TargetInfo, WeightInfo
from .members import DEFLATED_WEIGHTS, MANIFEST, PLAN, PROGRAM, WEIGHTS, has_machine_code, is_reserved
from .program import Program, programs_to_json
from .program_check import programs_from_json
from .safetensors import Tensor
from .weights import byte_planes

_TRIED_BYTES, _INFLATED_FROM_BYTES = 8 << 20, 1 << 20
"""The smallest weights, up to `_TRIED_BYTES` in total, are deflated where that pays, until `_INFLATED_FROM_BYTES` are
to be inflated at load, which takes about 10 ms.
"""
_WORTH = 1 / 64
"""Least fraction of a tensor's bytes that deflating must save."""


@dataclass(frozen=True)
class ArtifactContents:
    """Contents of an artifact to be written.

    `programs`: one per specialisation, followed by the `plain` ones; `signatures`: of the kernels that they launch, by
    symbol. `weights`: arrays by the names that `Constant` locations use. `kernels`: machine code by member name
    (`cubin_member`, …), empty when all steps run on the host. `plan`: the StitchPlan as JSON data. `extra`: further
    members by name, for instance `explain.json` or `kernels/gemm.ll`. `strip_weights`: leave the weights out; they are
    supplied at load. `precision`: that of contractions with float32 operands.
    """

    programs: tuple[Program, ...]
    weights: Mapping[str, Tensor]
    kernels: Mapping[str, bytes]
    target: TargetInfo
    compiler_version: str
    plan: Any = None
    plugins: tuple[PluginInfo, ...] = ()
    extra: Mapping[str, bytes] = field(default_factory=dict)
    strip_weights: bool = False
    precision: str = "fp32"
    signatures: Mapping[str, KernelSignature] = field(default_factory=dict)


def write_artifact(
    path: str | os.PathLike[str],
    contents: ArtifactContents,
    weights: str | os.PathLike[str] | None = None,
    *,
    deflate: bool = True,
) -> Manifest:
    """Write an artifact atomically: on any error no file is left over and an older one stays unchanged.

    `weights`: where to write the weights as well, as the file that `load(..., weights=path)` takes for an artifact with
    stripped weights. `deflate`: False where many artifacts are compressed together, which works better on plain ones.
    The same contents give the same bytes. Raises `ArtifactWriteError` when a file cannot be written, `ValueError` for
    contents that are inconsistent.
    """
    if weights is None:
        with archive.atomic_file(path) as file:
            return _write(file, contents, deflate)
    with archive.atomic_files(path, weights) as (file, beside):
        _write_tensors(beside, contents.weights)
        return _write(file, contents, deflate)


def weights_path(artifact: str | os.PathLike[str]) -> Path:
    """Return the path of the file for the stripped weights of an artifact: `ARTIFACT.weights.safetensors`."""
    path = Path(artifact)
    return path.with_name(path.name + ".weights.safetensors")


def artifact_bytes(contents: ArtifactContents, *, deflate: bool = True) -> bytes:
    """Return the bytes that `write_artifact` writes, for `load`. `deflate`: False where they are loaded at once, and
    compressing them would take longer. Raises `ValueError` for contents that are inconsistent.
    """
    file = io.BytesIO()
    _write(file, contents, deflate)
    return file.getvalue()


def _write(file: BinaryIO, contents: ArtifactContents, deflate: bool) -> Manifest:
    members = _members(contents, deflate)
    manifest = Manifest(
        contents.compiler_version,
        contents.target,
        {member.name: MemberInfo(member.size, _digest(member.chunks())) for member in members},
        {name: _weight_info(array, contents.strip_weights) for name, array in sorted(contents.weights.items())},
        contents.strip_weights,
        contents.plugins,
        contents.precision,
    )
    writer = archive.ArchiveWriter(file)
    for each in (_member(MANIFEST, _json_bytes(manifest.to_json()), deflate), *members):
        writer.add(each.name, each.size, each.chunks(), each.deflates)
    writer.finish()
    return manifest


def _digest(chunks: Iterable[bytes | memoryview]) -> str:
    sha256 = hashlib.sha256()
    for chunk in chunks:
        sha256.update(chunk)
    return sha256.hexdigest()


def _write_tensors(file: BinaryIO, tensors: Mapping[str, Tensor]) -> None:
    for chunk in safetensors.TensorWriter(tensors).chunks():
        file.write(chunk)


@dataclass(frozen=True)
class _Member:
    """A member to be written: `size` bytes in `chunks`; `deflates` is its inflated data if it is deflated."""

    name: str
    size: int
    chunks: Callable[[], Iterable[bytes | memoryview]]
    deflates: bytes | None = None


def _members(contents: ArtifactContents, deflate: bool) -> list[_Member]:
    """Return every member but the manifest, in file order. Weights are stored so that they can be mapped, except small
    ones.
    """
    program = programs_to_json(contents.programs, contents.signatures)
    small = {PLAN: _json_bytes(contents.plan), PROGRAM: _json_bytes(program)}
    programs_from_json(parse_json(small[PROGRAM]))
    for name, data in contents.extra.items():
        if is_reserved(name) or not archive.is_member_name(name):
            raise ValueError(f"an extra member cannot be named {name!r}")
        small[name] = data
    for name, data in contents.kernels.items():
        if not has_machine_code(name):
            raise ValueError(f"kernels cannot be in a member named {name!r}")
        small[name] = data
    mapped = dict(contents.weights) if not contents.strip_weights else {}
    packed = {name: mapped.pop(name) for name in (_to_deflate(mapped) if deflate else ())}
    if packed:
        planes = {name: byte_planes(array) for name, array in packed.items()}
        small[DEFLATED_WEIGHTS] = b"".join(safetensors.TensorWriter(planes).chunks())
    members = [_member(name, data, deflate) for name, data in sorted(small.items())]
    if mapped:
        writer = safetensors.TensorWriter(mapped)
        members.append(_Member(WEIGHTS, writer.size, writer.chunks))
    return members


def _member(name: str, data: bytes, deflate: bool) -> _Member:
    """Return a member with this data, deflated if that makes it smaller."""
    deflated = archive.deflated(data) if deflate else None
    held = data if deflated is None else deflated
    return _Member(name, len(held), lambda: [held], None if deflated is None else data)


def _to_deflate(weights: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the weights that are so small, and deflate so well, that inflating them at load pays; the
    smallest first.
    """
    chosen, tried, inflated_from = [], 0, 0
    for name, array in sorted(weights.items(), key=lambda item: (item[1].nbytes, item[0])):
        tried += array.nbytes
        if tried > _TRIED_BYTES:
            break
        size = len(zlib.compress(byte_planes(array).data, archive.LEVEL))
        if size > (1 - _WORTH) * safetensors.bytes_of(name, array):
            continue
        if array.nbytes > archive.MOST_INFLATED * size:  # the whole member would be stored for it
            continue
        inflated_from += size
        if inflated_from > _INFLATED_FROM_BYTES:
            break
        chosen.append(name)
    return chosen


def _weight_info(array: Tensor, with_hash: bool) -> WeightInfo:
    digest = hashlib.sha256(byte_view(array)).hexdigest() if with_hash else ""
    return WeightInfo(dtype_name(array.dtype), array.shape, digest)


def _json_bytes(data: Any) -> bytes:
    return json.dumps(finite_json(data), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
