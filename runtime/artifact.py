"""Reader of `.tsm` artifacts, which `artifact_writer` writes. `docs/artifact.md` describes the file.

artifact = read_artifact("model.tsm")
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from . import archive
from .errors import (
    ArtifactError,
    ArtifactIntegrityError,
    ArtifactLayoutError,
    ArtifactSchemaError,
    NotAnArtifactError,
    WeightsError,
)
from .jsonfields import parse_json
from .kernel_signature import KernelSignature, signatures_from_json
from .manifest import Manifest, WeightInfo
from .members import DEFLATED_WEIGHTS, MANIFEST, PLAN, PROGRAM, WEIGHTS
from .program import Program
from .program_check import programs_from_json
from .weights import (
    check_none_missing,
    check_stored,
    from_byte_planes,
    mapped_weights,
    planes_of,
    stored_tensors,
    supplied_weights,
)


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
        return self._own_weights(expected) if supplied is None else supplied_weights(supplied, expected, verify)

    def _own_weights(self, expected: Mapping[str, WeightInfo]) -> dict[str, np.ndarray]:
        raw = dict[str, np.ndarray]()
        for member in (name for name in (WEIGHTS, DEFLATED_WEIGHTS) if name in self._members):
            data = self.member(member)
            stored = stored_tensors(data, self.name, member)
            for name in stored:
                if name in raw or name not in expected:
                    problem = "twice" if name in raw else "although the manifest does not list it"
                    raise ArtifactLayoutError(f"weight {name!r} is there {problem}", file=self.name, member=member)
            listed = {name: expected[name] for name in stored}
            if member == DEFLATED_WEIGHTS:
                check_stored(stored, {name: planes_of(info) for name, info in listed.items()}, self.name)
                raw |= {
                    name: from_byte_planes(flat, listed[name]) for name, flat in mapped_weights(data, stored).items()
                }
            else:
                check_stored(stored, listed, self.name)
                raw |= mapped_weights(data, stored)
        check_none_missing(raw, expected, self.name)
        return {name: raw[name] for name in expected}


def read_artifact(source: str | os.PathLike[str] | bytes | memoryview, *, verify: bool = True) -> Artifact:
    """Read and check an artifact from a file (which is mapped) or from bytes.

    `verify=False` skips the SHA-256 of the weights; everything else is always checked. Raises a subclass of
    `ArtifactError` that names the file, the member and the remedy; `FileNotFoundError` never.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        name, data = "artifact in memory", memoryview(source)
    else:
        data = archive.mapped_file(source)
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
