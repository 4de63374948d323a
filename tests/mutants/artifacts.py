"""Damaged and forged artifacts: bytes changed anywhere, or what is no code changed with all hashes made right."""

from __future__ import annotations

import hashlib
import io
import json
import random
import struct
import zipfile

from tests.mutants.json_data import changed, rearranged
from tilestitch.runtime import archive
from tilestitch.runtime.kernel_signature import KernelSignature

Members = dict[str, bytes]

_KINDS = (
    *("rearranged",) * 12, *("program",) * 4, "signed", "manifest", "weights", "values", "cut", "plan", "explain",
)  # fmt: skip
"""What is forged, as often as it stands here."""


def mutant(data: bytes, seed: int) -> bytes:
    """An artifact like `data`, but for changes that the seed determines."""
    chooser = random.Random(seed)
    if chooser.random() < 0.2:
        return damaged(data, chooser)
    return forged(data, chooser)


def damaged(data: bytes, chooser: random.Random) -> bytes:
    """Bytes changed, cut out or put in, anywhere."""
    bytes_ = bytearray(data)
    for _ in range(chooser.choice((1, 1, 2, 8))):
        start = _position(bytes_, chooser)
        size = chooser.choice((1, 1, 4, 8, 64, 5000))
        match chooser.randrange(6):
            case 0:
                bytes_[start] ^= 1 << chooser.randrange(8)
            case 1:
                bytes_[start : start + size] = chooser.randbytes(size)
            case 2:
                bytes_[start : start + size] = chooser.choice((b"\0", b"\xff")) * size
            case 3:
                del bytes_[start : start + size]
            case 4:
                bytes_[start:start] = bytes_[start : start + size]
            case 5:
                del bytes_[start:]
        if not bytes_:
            break
    return bytes(bytes_)


def _position(data: bytearray, chooser: random.Random) -> int:
    """Anywhere, or near a header of the container."""
    headers = [data.find(mark, chooser.randrange(len(data))) for mark in (b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06")]
    near = [at + chooser.randrange(64) for at in headers if at >= 0]
    return min(chooser.choice(near) if near and chooser.random() < 0.6 else chooser.randrange(len(data)), len(data) - 1)


def forged(data: bytes, chooser: random.Random) -> bytes:
    """Program, manifest or weights changed; everything else made to fit. Machine code stays as it is: with
    other code it is another program.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        members = {name: file.read(name) for name in file.namelist()}
    manifest = json.loads(members.pop("manifest.json"))
    kind = chooser.choice(_KINDS)
    if kind == "program":
        members["program.json"] = changed(json.loads(members["program.json"]), chooser)
    elif kind == "rearranged":
        program = json.loads(members["program.json"])
        rearranged_programs = json.loads(rearranged(program["specialisations"], chooser))
        members["program.json"] = json.dumps({**program, "specialisations": rearranged_programs}).encode()
    elif kind == "signed":
        members["program.json"] = _with_own_signatures(json.loads(members["program.json"]), chooser)
    elif kind in ("plan", "explain"):
        members[f"{kind}.json"] = changed(json.loads(members[f"{kind}.json"]), chooser)
    elif kind in ("weights", "values") and any(name.endswith(".safetensors") for name in members):
        name = chooser.choice([name for name in members if name.endswith(".safetensors")])
        other = _with_other_header if kind == "weights" else _with_other_values
        members[name] = other(members[name], chooser)
    elif kind == "cut":
        name = chooser.choice([name for name in members if not name.startswith("kernels/")])
        members[name] = members[name][: chooser.randrange(len(members[name]) + 1)]
    manifest["members"] = {
        name: {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()} for name, text in members.items()
    }
    text = json.dumps(manifest).encode() if kind != "manifest" else changed(manifest, chooser)
    return _packed({"manifest.json": text, **members})


def _packed(members: Members) -> bytes:
    buffer = io.BytesIO()
    writer = archive.ArchiveWriter(buffer)
    for name, data in members.items():
        writer.add(name, len(data), [data])
    writer.finish()
    return buffer.getvalue()


def _with_own_signatures(program: dict[str, object], chooser: random.Random) -> bytes:
    """A changed program whose symbols vouch for signatures that were changed, too."""
    kernels = program["kernels"]
    assert isinstance(kernels, dict)
    changed_kernels = json.loads(changed(kernels, chooser).decode("utf-8", "surrogatepass"))
    text = changed({**program, "kernels": changed_kernels}, chooser).decode("utf-8", "surrogatepass")
    for symbol, signature in changed_kernels.items() if isinstance(changed_kernels, dict) else ():
        try:
            digest = KernelSignature.from_json(signature, symbol).digest
        except Exception:  # noqa: BLE001 - of what is no signature any more there is no digest
            continue
        text = text.replace(symbol, symbol[: -len(digest)] + digest)
    return text.encode("utf-8", "surrogatepass")


def _with_other_header(weights: bytes, chooser: random.Random) -> bytes:
    (length,) = struct.unpack_from("<Q", weights)
    header = changed(json.loads(weights[8 : 8 + length]), chooser)
    said = chooser.choice((len(header), len(header), len(header) + 1, 0, 2**63, 2**64 - 1))
    return struct.pack("<Q", said) + header + weights[8 + length :]


def _with_other_values(weights: bytes, chooser: random.Random) -> bytes:
    (length,) = struct.unpack_from("<Q", weights)
    head, values = weights[: 8 + length], bytearray(weights[8 + length :])
    for _ in range(chooser.choice((1, 10, 1000))):
        if values:
            values[chooser.randrange(len(values))] = chooser.choice((0, 1, 0x7F, 0x80, 0xFF))
    return head + bytes(values)
