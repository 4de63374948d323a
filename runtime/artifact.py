"""Writer and reader of `.tsm` artifacts. `docs/artifact.md` describes the file.

write_artifact("model.tsm", ArtifactContents(programs=…, weights=…, kernels={CPU_LIBRARY: link(objects, exports)}, …))
artifact = read_artifact("model.tsm")
"""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import math
import mmap
import os
import re
import stat
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from . import archive, safetensors
from .dtypes import ITEM_BYTES, dtype_name, memory_dtype
from .errors import (
    ArtifactError,
    ArtifactIntegrityError,
    ArtifactLayoutError,
    ArtifactSchemaError,
    NotAnArtifactError,
    WeightsError,
)
from .jsonfields import finite_json, parse_json
from .kernel_signature import KernelSignature, signatures_from_json
from .manifest import Manifest, MemberInfo, PluginInfo, TargetInfo, WeightInfo
from .program import Program, programs_to_json
from .program_check import programs_from_json
from .safetensors import Tensor

MANIFEST, PLAN, PROGRAM, WEIGHTS = "manifest.json", "plan.json", "program.json", "weights.safetensors"
DEFLATED_WEIGHTS = "deflated.safetensors"
"""Weights that are inflated at load rather than mapped. Stored as byte planes: the first byte of every element, then
the second of every element, …, since the bytes of scales and biases deflate better so.
"""
CPU_LIBRARY = "kernels/cpu.so"
"""Member with the kernels of a CPU artifact."""

_KERNELS = re.compile(r"kernels/(cpu\.so|sm_\d+[af]?(/\d+)?\.cubin|compute_\d+[af]?(/\d+)?\.ptx)")
_RESERVED = (MANIFEST, PLAN, PROGRAM, WEIGHTS, DEFLATED_WEIGHTS)
_TRIED_BYTES, _INFLATED_FROM_BYTES = 8 << 20, 1 << 20
"""The smallest weights, up to `_TRIED_BYTES` in total, are deflated where that pays, until `_INFLATED_FROM_BYTES` are
to be inflated at load, which takes about 10 ms.
"""
_WORTH = 1 / 64
"""Least fraction of a tensor's bytes that deflating must save."""


def cubin_member(architecture: str, number: int | None = None) -> str:
    """Return the member name of a cubin for `architecture` (`sm_90a`): all of its machine code, or part `number` of
    several.
    """
    return f"kernels/{architecture}{'' if number is None else f'/{number}'}.cubin"


def ptx_member(architecture: str, number: int | None = None) -> str:
    """Return the member name of the PTX for `architecture` (`compute_90`): all of it, or part `number` of several."""
    return f"kernels/{architecture}{'' if number is None else f'/{number}'}.ptx"


def cuda_source_member(symbol: str) -> str:
    """Return the member name of one kernel's CUDA text, which `--keep-source` keeps and the emulated device runs."""
    return f"kernels/cuda/{symbol}.cu"


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


def artifact_bytes(contents: ArtifactContents) -> bytes:
    """Return the bytes that `write_artifact` writes, for `load`. Raises `ValueError` for contents that are
    inconsistent.
    """
    file = io.BytesIO()
    _write(file, contents, deflate=True)
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


def write_weights(path: str | os.PathLike[str], weights: Mapping[str, Tensor]) -> None:
    """Write the file that `load(..., weights=path)` takes for an artifact with stripped weights; atomically."""
    with archive.atomic_file(path) as file:
        _write_tensors(file, weights)


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
        if name in _RESERVED or _KERNELS.fullmatch(name) or not archive.is_member_name(name):
            raise ValueError(f"an extra member cannot be named {name!r}")
        small[name] = data
    for name, data in contents.kernels.items():
        if not _KERNELS.fullmatch(name):
            raise ValueError(f"kernels cannot be in a member named {name!r}")
        small[name] = data
    mapped = dict(contents.weights) if not contents.strip_weights else {}
    packed = {name: mapped.pop(name) for name in (_to_deflate(mapped) if deflate else ())}
    if packed:
        planes = {name: _byte_planes(array) for name, array in packed.items()}
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


def _byte_planes(array: Tensor) -> np.ndarray:
    """Return the bytes of an array as planes, [bytes of an element, elements]."""
    raw = np.frombuffer(_raw_bytes(array), np.uint8)
    return np.ascontiguousarray(raw.reshape(array.size, array.itemsize).T)


def _to_deflate(weights: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the weights that are so small, and deflate so well, that inflating them at load pays; the
    smallest first.
    """
    chosen, tried, inflated_from = [], 0, 0
    for name, array in sorted(weights.items(), key=lambda item: (item[1].nbytes, item[0])):
        tried += array.nbytes
        if tried > _TRIED_BYTES:
            break
        size = len(zlib.compress(_byte_planes(array).data, archive.LEVEL))
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
    digest = hashlib.sha256(_raw_bytes(array)).hexdigest() if with_hash else ""
    return WeightInfo(dtype_name(array.dtype), array.shape, digest)


def _raw_bytes(array: Tensor) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _json_bytes(data: Any) -> bytes:
    return json.dumps(finite_json(data), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


# --- reading ---------------------------------------------------------------------------------------------------------


class Artifact:
    """An artifact that was read and checked. `name` is the file's name for messages, `data` the bytes of the whole
    file.
    """

    def __init__(
        self,
        name: str,
        data: memoryview,
        members: dict[str, archive.Member],
        manifest: Manifest,
        programs: tuple[Program, ...],
    ) -> None:
        self.name = name
        self.manifest = manifest
        self._all = programs
        self.programs = tuple(program for program in programs if not program.plain)
        self._data = data
        self._members = members

    def plain(self) -> Artifact:
        """Return the artifact with only its programs without tile synchronisation, whose kernels wait for whole
        kernels, if it has any.
        """
        programs = tuple(replace(program, plain=False) for program in self._all if program.plain) or self.programs
        return Artifact(self.name, self._data, self._members, self.manifest, programs)

    @property
    def member_names(self) -> tuple[str, ...]:
        return tuple(self._members)

    def member(self, name: str) -> memoryview:
        """Return a member's data: a view if it is stored, else inflated now. Raises `ArtifactLayoutError` when there is
        no such member, `ArtifactIntegrityError` when it cannot be inflated.
        """
        if name not in self._members:
            raise ArtifactLayoutError("the artifact has no such member", file=self.name, member=name)
        try:
            return archive.member_data(self._data, self._members[name])
        except ArtifactError as error:
            error.file = self.name
            raise

    @property
    def plan(self) -> Any:
        """The StitchPlan as JSON data."""
        return self.json_member(PLAN)

    def json_member(self, name: str) -> Any:
        """Return the parsed data of a JSON member. Raises `ArtifactSchemaError` when it is not JSON."""
        return _parse(self.member(name), self.name, name)

    @property
    def signatures(self) -> dict[str, KernelSignature]:
        """The signatures of the kernels by symbol."""
        return signatures_from_json(self.json_member(PROGRAM)["kernels"], "program.json.kernels")

    def weights(
        self, supplied: str | os.PathLike[str] | Mapping[str, Any] | None = None, *, verify: bool = True
    ) -> dict[str, np.ndarray]:
        """Return all weights as read-only, 64-byte aligned byte arrays (uint8, one-dimensional) by name; mapped, not
        copied, unless deflated.

        `supplied` (a safetensors file or arrays by name) supplies stripped weights, or replaces those in the file. With
        `verify=False` their values may differ from those at compile time. Raises `WeightsError` when they are missing
        or do not fit.
        """
        expected = self.manifest.weights
        if supplied is None and self.manifest.weights_stripped and expected:
            raise WeightsError(
                f"{self.name}: the artifact was compiled with --strip-weights and holds none of its {len(expected)} "
                "weights; give them with load(..., weights=FILE.safetensors), or --weights on the command line"
            )
        if not expected:
            return {}
        if supplied is None:
            return self._own_weights(expected)
        if isinstance(supplied, Mapping):
            arrays = {str(name): np.asarray(array) for name, array in supplied.items()}
            _check_supplied({n: (dtype_name(a.dtype), a.shape) for n, a in arrays.items()}, expected, "the weights")
            raw = {name: _aligned(np.frombuffer(_raw_bytes(arrays[name]), np.uint8)) for name in expected}
        else:
            if not isinstance(supplied, str | os.PathLike):
                raise WeightsError(f"weights is {supplied!r}; give the path of a safetensors file, or arrays by name")
            data, stored = _supplied_tensors(supplied)
            _check_stored(stored, expected, str(supplied))
            raw = _mapped_weights(data, {name: stored[name] for name in expected})
        if verify:
            _check_hashes(raw, expected)
        return raw

    def _own_weights(self, expected: Mapping[str, WeightInfo]) -> dict[str, np.ndarray]:
        raw = dict[str, np.ndarray]()
        for member in (name for name in (WEIGHTS, DEFLATED_WEIGHTS) if name in self._members):
            data = self.member(member)
            stored = _stored_tensors(data, self.name, member)
            for name in stored:
                if name in raw or name not in expected:
                    problem = "twice" if name in raw else "although the manifest does not list it"
                    raise ArtifactLayoutError(f"weight {name!r} is there {problem}", file=self.name, member=member)
            listed = {name: expected[name] for name in stored}
            if member == DEFLATED_WEIGHTS:
                _check_stored(stored, {name: _planes_of(info) for name, info in listed.items()}, self.name)
                raw |= {name: _joined(flat, listed[name]) for name, flat in _mapped_weights(data, stored).items()}
            else:
                _check_stored(stored, listed, self.name)
                raw |= _mapped_weights(data, stored)
        _check_none_missing(raw, expected, self.name)
        return {name: raw[name] for name in expected}


def read_artifact(source: str | os.PathLike[str] | bytes | memoryview, *, verify: bool = True) -> Artifact:
    """Read and check an artifact from a file (which is mapped) or from bytes.

    `verify=False` skips the SHA-256 of the weights; everything else is always checked. Raises a subclass of
    `ArtifactError` that names the file, the member and the remedy; `FileNotFoundError` never.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        name, data = "artifact in memory", memoryview(source)
    else:
        data = _map_file(source)
        name = os.fspath(source)
    try:
        return _read(name, data, verify)
    except ArtifactError as error:
        error.file = error.file or name
        if isinstance(error, NotAnArtifactError) and name.endswith(".onnx"):
            error.remedy = f"compile the model first (tilestitch compile {name} -o MODEL.tsm) and name the .tsm file"
        raise


def _read(name: str, data: memoryview, verify: bool) -> Artifact:
    members = archive.read_directory(data, name)
    first = next(iter(members.values()))
    if first.name != MANIFEST:
        raise ArtifactLayoutError(f"the first member is not {MANIFEST}", member=first.name)
    text = archive.member_data(data, first)
    if zlib.crc32(text) != first.crc32:
        raise ArtifactIntegrityError("the member is damaged (its checksum differs)", member=MANIFEST)
    manifest = _in_member(MANIFEST, Manifest.from_json, _parse(text, name, MANIFEST))
    _check_members(data, members, manifest, verify)
    parsed = _parse(archive.member_data(data, members[PROGRAM]), name, PROGRAM)
    programs = _in_member(PROGRAM, programs_from_json, parsed)
    return Artifact(name, data, members, manifest, programs)


def _check_members(data: memoryview, members: dict[str, archive.Member], manifest: Manifest, verify: bool) -> None:
    for name in members:
        if name not in manifest.members and name != MANIFEST:
            raise ArtifactLayoutError("the manifest does not list the member", member=name)
    for name in (*manifest.members, PROGRAM, PLAN):
        if name not in members:
            raise ArtifactLayoutError("the member is missing", member=name)
    if manifest.weights and not manifest.weights_stripped and not {WEIGHTS, DEFLATED_WEIGHTS} & set(members):
        raise ArtifactLayoutError("the member is missing", member=WEIGHTS)
    if WEIGHTS in members and members[WEIGHTS].inflated is not None:
        raise ArtifactLayoutError("the weights are deflated; they are stored, to be mapped", member=WEIGHTS)
    for name, info in manifest.members.items():
        member = members[name]
        if member.size != info.size:
            raise ArtifactIntegrityError(
                f"the member has {member.size} bytes, the manifest says {info.size}", member=name
            )
        if name == WEIGHTS and not verify:
            continue
        if hashlib.sha256(data[member.offset : member.offset + member.size]).hexdigest() != info.sha256:
            raise ArtifactIntegrityError("the member differs from what the manifest recorded (SHA-256)", member=name)


def _in_member(member: str, read: Any, data: Any) -> Any:
    try:
        return read(data)
    except ArtifactError as error:
        error.member = member
        raise
    except RecursionError:
        raise ArtifactSchemaError("the member is nested too deeply", member=member) from None


def _parse(text: memoryview, file: str, member: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise ArtifactSchemaError(f"the member is no JSON text ({error})", file=file, member=member) from error


def _map_file(path: str | os.PathLike[str]) -> memoryview:
    """Map a file read-only and return its bytes. The mapping lives as long as views of it."""
    if not isinstance(path, str | os.PathLike) or "\0" in str(
        path
    ):  # open() would take an integer as a descriptor and close it, too
        raise NotAnArtifactError(f"{path!r} is no path of a file", remedy="give the path of a .tsm file, or its bytes")
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would block until something writes to it
            raise NotAnArtifactError("cannot be read: no regular file", file=os.fspath(path), remedy="name a file")
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise NotAnArtifactError("the file is empty", file=os.fspath(path))
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise NotAnArtifactError(
            f"cannot be read: {error.strerror}", file=os.fspath(path), remedy="check the path and its permissions"
        ) from error


# --- weights ---------------------------------------------------------------------------------------------------------


def _stored_tensors(data: memoryview, file: str, member: str) -> dict[str, safetensors.Stored]:
    try:
        return safetensors.read_header(data)
    except ArtifactSchemaError as error:
        error.file, error.member = file, member
        raise


def _mapped_weights(data: memoryview, stored: Mapping[str, safetensors.Stored]) -> dict[str, np.ndarray]:
    whole = np.frombuffer(data, np.uint8)
    return {name: _aligned(whole[one.offset : one.offset + one.nbytes]) for name, one in stored.items()}


def _check_stored(stored: Mapping[str, safetensors.Stored], expected: Mapping[str, WeightInfo], file: str) -> None:
    shown = {name: (tensor.dtype, tensor.shape) for name, tensor in stored.items()}
    _check_supplied(shown, {name: _as_stored(info) for name, info in expected.items()}, file)


def _planes_of(info: WeightInfo) -> WeightInfo:
    return replace(info, dtype="uint8", shape=(ITEM_BYTES[info.dtype], math.prod(info.shape)))


def _joined(planes: np.ndarray, info: WeightInfo) -> np.ndarray:
    """Return the elements' bytes in memory order, from byte planes."""
    return _aligned(aligned_bytes(planes.size, planes.reshape(_planes_of(info).shape).T.reshape(-1)))


def _as_stored(info: WeightInfo) -> WeightInfo:
    """Return a weight's description as the safetensors file has it: types that the format lacks are stored as bytes."""
    dtype, shape = safetensors.stored_type(info.dtype, info.shape)
    return replace(info, dtype=dtype, shape=shape)


def _supplied_tensors(file: str | os.PathLike[str]) -> tuple[memoryview, Mapping[str, safetensors.Stored]]:
    data = _map_file(file)
    try:
        return data, safetensors.read_header(data)
    except ArtifactSchemaError as error:
        raise WeightsError(
            f"{os.fspath(file)} is no safetensors file, or a damaged one ({error.problem}); give the weights that were "
            "written with the artifact"
        ) from error


def _check_none_missing(found: Iterable[str], expected: Iterable[str], file: str) -> None:
    missing = sorted(set(expected) - set(found))
    if missing:
        raise WeightsError(
            f"{file}: {len(missing)} weights are missing: {', '.join(missing[:5])}; give those of this artifact"
        )


def _check_supplied(
    found: Mapping[str, tuple[str, tuple[int, ...]]], expected: Mapping[str, WeightInfo], file: str
) -> None:
    _check_none_missing(found, expected, file)
    for name, info in expected.items():
        dtype, shape = found[name]
        if (dtype, tuple(shape)) != (info.dtype, info.shape):
            raise WeightsError(
                f"{file}: weight {name!r} is {dtype} {list(shape)}, the artifact needs {info.dtype} "
                f"{list(info.shape)}; give those "
                "that were written when it was compiled"
            )


def _check_hashes(raw: Mapping[str, np.ndarray], expected: Mapping[str, WeightInfo]) -> None:
    for name, info in expected.items():
        if info.sha256 and hashlib.sha256(raw[name].data).hexdigest() != info.sha256:
            raise WeightsError(
                f"weight {name!r} has other values than when the artifact was compiled; give the right file"
            )


def _aligned(raw: np.ndarray) -> np.ndarray:
    """Return the array read-only and 64-byte aligned, copied only if it is not aligned."""
    if raw.ctypes.data % archive.ALIGNMENT and raw.size:
        raw = aligned_bytes(raw.size, raw)
    view = raw.view()
    view.flags.writeable = False
    return view


def address_of(array: Any) -> int:
    """Return the address of a C-contiguous array. numpy's own way (`array.ctypes`) takes three times as long."""
    if array.flags.writeable and array.dtype.isbuiltin == 1:
        return ctypes.addressof(_NOTHING.from_buffer(array))
    address: int = array.__array_interface__["data"][0]
    return address


_NOTHING = ctypes.c_char * 0


def aligned_bytes(size: int, source: np.ndarray | None = None) -> np.ndarray:
    """Return a new 64-byte aligned uint8 array of `size` bytes, filled from `source` if given, else undefined."""
    buffer = np.empty(size + archive.ALIGNMENT, np.uint8)
    start = -address_of(buffer) % archive.ALIGNMENT
    result = buffer[start : start + size]
    if source is not None:
        result[...] = source
    return result


def typed_weight(raw: np.ndarray, dtype: str, shape: tuple[int, ...], offset_bytes: int = 0) -> np.ndarray:
    """Return a weight's bytes from `offset_bytes` on as an array of the given type and shape. Raises
    `ArtifactSchemaError` when there are too few.
    """
    numpy_type = memory_dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    end = offset_bytes + count * numpy_type.itemsize
    if end > raw.size:
        raise ArtifactSchemaError(
            f"a constant of type {dtype} {list(shape)} ends beyond its weight of {raw.size} bytes"
        )
    return raw[offset_bytes:end].view(numpy_type).reshape(shape)
