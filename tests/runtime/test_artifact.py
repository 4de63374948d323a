"""An artifact is written whole or not at all, is the same bytes each time, and every damage to it is found."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import resource
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.programs import contents, increment_program, write_weights
from tests.runtime.signed import signed
from tilestitch.runtime import archive, load
from tilestitch.runtime.artifact import read_artifact
from tilestitch.runtime.artifact_writer import ArtifactContents, artifact_bytes, write_artifact
from tilestitch.runtime.errors import (
    ArtifactError,
    ArtifactIntegrityError,
    ArtifactLayoutError,
    ArtifactSchemaError,
    ArtifactVersionError,
    ArtifactWriteError,
    NotAnArtifactError,
    WeightsError,
)

WEIGHTS = {
    "w": np.arange(4, dtype=np.float32),
    "empty": np.zeros((0, 3)),
    "scalar": np.array(7, np.int16),
    "complex": np.array([1j, 2], np.complex128),
    "noise": np.random.default_rng(0).integers(0, 256, 1 << 14, np.uint8),
}
"""All but the noise are deflated."""


def small(**more: Any) -> ArtifactContents:
    return contents(increment_program(), weights=WEIGHTS, extra={"explain.json": b"{}"}, **more)


@cache
def image() -> bytes:
    """The bytes of a small artifact."""
    buffer = io.BytesIO()
    path = Path(_scratch(), "image.tsm")
    write_artifact(path, small(kernels=b"not really a library"))
    buffer.write(path.read_bytes())
    return buffer.getvalue()


@cache
def _scratch() -> str:
    import tempfile

    return tempfile.mkdtemp(prefix="tilestitch-test-")


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "m.tsm"
    manifest = write_artifact(path, small())
    artifact = read_artifact(path)
    assert artifact.programs == signed(increment_program())[0]
    assert artifact.manifest == manifest
    assert artifact.plan == {"groups": []}
    assert bytes(artifact.member("explain.json")) == b"{}"
    raw = artifact.weights()
    for name, array in WEIGHTS.items():
        assert raw[name].tobytes() == array.tobytes()
        assert raw[name].ctypes.data % 64 == 0 or not raw[name].size
        assert not raw[name].flags.writeable


def test_any_zip_tool_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "m.tsm"
    write_artifact(path, small())
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
        assert file.namelist()[0] == "manifest.json"
        stored = {info.filename for info in file.infolist() if info.compress_type == zipfile.ZIP_STORED}
        assert "weights.safetensors" in stored
        assert not {"manifest.json", "program.json", "deflated.safetensors"} & stored
        assert json.loads(file.read("manifest.json"))["format"] == "tilestitch"


def test_same_contents_give_same_bytes(tmp_path: Path) -> None:
    write_artifact(tmp_path / "a.tsm", small())
    write_artifact(tmp_path / "b.tsm", small())
    assert (tmp_path / "a.tsm").read_bytes() == (tmp_path / "b.tsm").read_bytes()


def test_members_are_aligned() -> None:
    members = archive.read_directory(memoryview(image()), "image")
    assert all(member.offset % 64 == 0 for member in members.values())


def test_it_is_read_from_bytes_too() -> None:
    assert read_artifact(image()).weights()["w"].ctypes.data % 64 == 0


# --- damage ---


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 10**9))
def test_truncated_anywhere(length: int) -> None:
    with pytest.raises(ArtifactError):
        read_artifact(image()[: length % len(image())])


def test_truncated_at_the_edges_of_every_member() -> None:
    for member in archive.read_directory(memoryview(image()), "image").values():
        for edge in (member.header_offset, member.offset, member.offset + member.size):
            for length in (edge - 1, edge, edge + 1):
                with pytest.raises(ArtifactError):
                    read_artifact(image()[: max(0, length)])


@settings(max_examples=600, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 255))
def test_any_flipped_byte(position: int, change: int) -> None:
    damaged = bytearray(image())
    damaged[position % len(damaged)] ^= change
    with pytest.raises(ArtifactError):
        read_artifact(bytes(damaged))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_arbitrary_bytes(data: bytes) -> None:
    for candidate in (data, b"PK\x03\x04" + data, image() + data + b"x"):
        with pytest.raises(ArtifactError):
            read_artifact(candidate)


def test_error_names_file_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / "notes.tsm"
    path.write_text("hello, I am no artifact")
    with pytest.raises(
        NotAnArtifactError, match=r"notes\.tsm: this is not a tilestitch artifact; name a \.tsm file"
    ) as caught:
        load(path)
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("name", ["missing.tsm", "", "folder"])
def test_unreadable_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(NotAnArtifactError, match="cannot be read"):
        read_artifact(tmp_path / name)


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.tsm"
    path.touch()
    with pytest.raises(NotAnArtifactError, match="empty"):
        read_artifact(path)


Members = dict[str, bytes]


def as_held(name: str, data: bytes) -> bytes:
    """What is in the file for a member."""
    return data if name == "weights.safetensors" else archive.deflated(data) or data


def rebuilt(change: Callable[[Members, Any], None], fix_hashes: bool = False) -> bytes:
    """The artifact taken apart, changed (members and manifest), and put together again in canonical form."""
    with zipfile.ZipFile(io.BytesIO(image())) as file:
        members = {name: file.read(name) for name in file.namelist()}
    manifest = json.loads(members["manifest.json"])
    change(members, manifest)
    if fix_hashes:
        for name, info in manifest["members"].items():
            held = as_held(name, members[name])
            info.update(size=len(held), sha256=hashlib.sha256(held).hexdigest())
    members["manifest.json"] = json.dumps(manifest).encode()
    buffer = io.BytesIO()
    writer = archive.ArchiveWriter(buffer)
    for name, data in members.items():
        held = as_held(name, data)
        writer.add(name, len(held), [held], None if held is data else data)
    writer.finish()
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            lambda m, f: m.update({"kernels/cpu.so": b"no library but evil!"}),
            ArtifactIntegrityError,
            "kernels/cpu.so.*SHA-256",
        ),
        (lambda m, f: m.update({"plan.json": b"{}"}), ArtifactIntegrityError, "plan.json.*bytes"),
        (lambda m, f: m.update({"extra.bin": b"x"}), ArtifactLayoutError, "does not list"),
        (lambda m, f: m.pop("program.json"), ArtifactLayoutError, "program.json.*missing"),
        (lambda m, f: m.pop("weights.safetensors"), ArtifactLayoutError, "weights.safetensors.*missing"),
        (lambda m, f: f.update(format_version=9), ArtifactVersionError, "version 9.*upgrade"),
        (lambda m, f: f.update(format="other"), ArtifactSchemaError, "not 'tilestitch'"),
        (lambda m, f: f.update(future=1), ArtifactSchemaError, "unknown fields future"),
        (lambda m, f: f["members"]["plan.json"].update(sha256="x"), ArtifactSchemaError, "no SHA-256"),
        (lambda m, f: f["target"].pop("triple"), ArtifactSchemaError, "no field 'triple'"),
    ],
)
def test_tampering_is_found(change: Callable[[Members, Any], None], error: type[ArtifactError], message: str) -> None:
    with pytest.raises(error, match=message):
        read_artifact(rebuilt(change))


@pytest.mark.parametrize(
    ("member", "text", "message"),
    [
        ("program.json", b"[" * 100_000, "no JSON text"),
        ("program.json", b"\xff", "no JSON text"),
        ("program.json", b'{"kernels": {}, "specialisations": 3}', "not a list"),
        ("program.json", b'{"specialisations": [], "kernels": {}, "specialisations": []}', "'specialisations' twice"),
    ],
)
def test_malformed_members_with_the_right_hash(member: str, text: bytes, message: str) -> None:
    with pytest.raises(ArtifactSchemaError, match=message) as caught:
        read_artifact(rebuilt(lambda m, f: m.update({member: text}), fix_hashes=True))
    assert caught.value.member == member


@pytest.mark.parametrize(("member", "name"), [("weights.safetensors", "noise"), ("deflated.safetensors", "w")])
@pytest.mark.parametrize(
    "header",
    ["", "{}", "[]", "nonsense", '{"NAME":{"dtype":"U8","shape":[4,4],"data_offsets":[0,1]}}',
     '{"NAME":{"dtype":"U8","shape":[4,4],"data_offsets":[0,99999]}}',
     '{"NAME":{"dtype":"F99","shape":[4],"data_offsets":[0,16]}}',
     '{"NAME":{"dtype":"U8","shape":[-4,4],"data_offsets":[0,16]}}',
     '{"NAME":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}',
     '{"other":{"dtype":"U8","shape":[4,4],"data_offsets":[0,16]}}'],
)  # fmt: skip
def test_malformed_weights_with_the_right_hash(header: str, member: str, name: str) -> None:
    text = header.replace("NAME", name).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(16)
    artifact = read_artifact(rebuilt(lambda m, f: m.update({member: data}), fix_hashes=True))
    with pytest.raises((ArtifactSchemaError, ArtifactLayoutError, WeightsError)):
        artifact.weights()


def test_a_weight_may_not_be_there_twice() -> None:
    header = b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    data = struct.pack("<Q", len(header)) + header + bytes(16)
    artifact = read_artifact(rebuilt(lambda m, f: m.update({"weights.safetensors": data}), fix_hashes=True))
    with pytest.raises(ArtifactLayoutError, match="'w' is there twice"):
        artifact.weights()


def test_what_is_to_be_packed_with_others_is_plain_and_loads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "plain.tsm"
    write_artifact(path, small(), deflate=False)
    with zipfile.ZipFile(path) as file:
        assert {info.compress_type for info in file.infolist()} == {zipfile.ZIP_STORED}
    plain, usual = read_artifact(path), read_artifact(image())
    assert plain.programs == usual.programs
    for name, array in usual.weights().items():
        np.testing.assert_array_equal(plain.weights()[name], array)


def test_what_deflates_is_inflated_at_load() -> None:
    random = np.random.default_rng(1)
    bits, scales = random.integers(0, 2, 1 << 18, np.int8), random.random(5000, np.float32)
    noise = random.integers(0, 256, (2, 1 << 18), np.uint8)
    weights = {"bits": bits, "scales": scales, "noise": noise}
    image = artifact_bytes(contents(increment_program(), weights=weights))
    assert len(image) < noise.nbytes + 0.95 * scales.nbytes + bits.nbytes // 4
    raw = read_artifact(image).weights()
    assert {name: array.tobytes() for name, array in raw.items()} == {n: a.tobytes() for n, a in weights.items()}
    header = read_artifact(image).member("weights.safetensors")[:200].tobytes()
    assert b"noise" in header and b"scales" not in header


def test_weights_that_deflate_too_well_are_there_all_the_same() -> None:
    scales = np.random.default_rng(0).random(5000, np.float32)
    weights = {"zeros": np.zeros((1 << 20,), np.float32), "none": np.zeros((0, 3)), "scales": scales}
    read = read_artifact(artifact_bytes(contents(increment_program(), weights=weights)))
    raw = read.weights()
    assert raw["zeros"].nbytes == 1 << 22 and not raw["zeros"].any() and raw["none"].size == 0
    assert raw["scales"].tobytes() == scales.tobytes()
    headers = [read.member(f"{name}.safetensors")[:300].tobytes() for name in ("weights", "deflated")]
    assert [b"zeros" in header for header in headers] == [True, False]


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"dtype": "string", "shape": [4]}, "not one of"),
        ({"dtype": "float31", "shape": [4]}, "not one of"),
        ({"dtype": "int8", "shape": [2**62, 2]}, "too many elements"),
        ({"dtype": "int8", "shape": [0, 2**62, 2]}, "too many elements"),
        ({"dtype": "int8", "shape": [1] * 65}, "rank 65"),
    ],
)
def test_types_of_weights_that_cannot_be(info: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtifactSchemaError, match=message):
        read_artifact(rebuilt(lambda m, f: f["weights"]["w"].update(info)))


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", os.devnull):
        with pytest.raises(NotAnArtifactError, match="no regular file"):
            read_artifact(path)


def with_deflated(name: str, packed: bytes, data: bytes) -> bytes:
    """The artifact with a member whose bytes are said to be `data` once they are inflated; all hashes made right."""
    with zipfile.ZipFile(io.BytesIO(image())) as file:
        members = {each: file.read(each) for each in file.namelist()}
    manifest = json.loads(members["manifest.json"])
    for each, info in manifest["members"].items():
        held = packed if each == name else members[each]
        info.update(size=len(held), sha256=hashlib.sha256(held).hexdigest())
    members["manifest.json"] = json.dumps(manifest).encode()
    buffer = io.BytesIO()
    writer = archive.ArchiveWriter(buffer)
    for each, text in members.items():
        if each == name:
            writer.add(each, len(packed), [packed], data)
        else:
            writer.add(each, len(text), [text])
    writer.finish()
    return buffer.getvalue()


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


TEXT = json.dumps({"numbers": list(range(500))}).encode()


def test_a_deflated_member_gives_its_data() -> None:
    artifact = read_artifact(with_deflated("explain.json", raw_deflate(TEXT), TEXT))
    assert bytes(artifact.member("explain.json")) == TEXT


@pytest.mark.parametrize(
    "packed",
    [
        raw_deflate(TEXT) + b"\0",  # something behind it
        raw_deflate(TEXT)[:-1],
        raw_deflate(TEXT + b" "),  # more than the header says
        raw_deflate(TEXT[:-1]),
        raw_deflate(TEXT[:-1] + b" "),  # another checksum
        raw_deflate(bytes(200_000)),  # a hundred times as much
        b"\xff" * 100,
    ],
)
def test_deflated_members_that_are_not_what_they_are_said_to_be(packed: bytes) -> None:
    artifact = read_artifact(with_deflated("explain.json", packed, TEXT))
    for _ in range(2):
        with pytest.raises(ArtifactIntegrityError, match=r"explain\.json.*inflated"):
            artifact.member("explain.json")


def test_a_bomb_is_refused_before_it_is_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(10_000_000)
    monkeypatch.setattr(archive, "member_data", lambda *_: pytest.fail("it was inflated"))
    with pytest.raises(ArtifactLayoutError, match=r"program.json.*more than 128 times"):
        read_artifact(with_deflated("program.json", raw_deflate(data), data))


def test_what_is_not_smaller_is_stored() -> None:
    with pytest.raises(ArtifactLayoutError, match="no smaller"):
        read_artifact(with_deflated("explain.json", raw_deflate(b"{}"), b"{}"))
    assert archive.deflated(b"{}") is None
    assert archive.deflated(bytes(10_000_000)) is None


def test_what_is_mapped_is_never_deflated() -> None:
    name = "weights.safetensors"
    data = bytes(range(64)) * 4
    with pytest.raises(ArtifactLayoutError, match=f"{name}.*deflated"):
        read_artifact(with_deflated(name, raw_deflate(data), data))


def foreign_zip(names: list[str], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name in names:
            file.writestr(zipfile.ZipInfo(name), b"data" * 20, compression)
    return buffer.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("names", "compression"),
    [
        (["manifest.json", "../evil"], zipfile.ZIP_STORED),
        (["manifest.json", "/etc/passwd"], zipfile.ZIP_STORED),
        (["manifest.json", "a//b"], zipfile.ZIP_STORED),
        (["manifest.json", "a/./b"], zipfile.ZIP_STORED),
        (["manifest.json", "C:\\x"], zipfile.ZIP_STORED),
        (["manifest.json", "manifest.json"], zipfile.ZIP_STORED),
        (["manifest.json", "plan.json"], zipfile.ZIP_DEFLATED),
        (["plan.json", "manifest.json"], zipfile.ZIP_STORED),
    ],
)
def test_other_zips_are_refused(names: list[str], compression: int) -> None:
    with pytest.raises(ArtifactLayoutError):
        read_artifact(foreign_zip(names, compression))


def test_names_outside_are_refused_by_name() -> None:
    data = bytearray(image())
    entry = data.rindex(b"explain.json")
    data[entry : entry + 12] = b"../plain.jso"
    with pytest.raises(ArtifactLayoutError, match="name is not allowed"):
        read_artifact(bytes(data))


# --- writing ---


def test_an_older_file_stays_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.tsm"
    path.write_text("old")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archive.ArchiveWriter, "finish", full)
    with pytest.raises(ArtifactWriteError, match="No space left on device") as caught:
        write_artifact(path, small())
    assert caught.value.exit_code == 4
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.tsm"]
    assert path.read_text() == "old"


def test_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(archive.ArchiveWriter, "finish", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_artifact(tmp_path / "m.tsm", small())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("limit", [0, 100, 5000, 20000])
def test_a_file_that_may_not_grow(tmp_path: Path, limit: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(ArtifactWriteError, match="cannot be written"):
            write_artifact(tmp_path / "m.tsm", contents(increment_program(), weights={"w": np.ones(10_000)}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ArtifactWriteError, match="No such file"):
        write_artifact(tmp_path / "nowhere" / "m.tsm", small())


@pytest.mark.parametrize("name", ["../x", "/x", "", "a/../b", "program.json", "kernels/cpu.so"])
def test_names_that_extra_members_cannot_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be named"):
        write_artifact(tmp_path / "m.tsm", contents(increment_program(), weights=WEIGHTS, extra={name: b""}))
    assert not list(tmp_path.iterdir())


def test_headers_of_members_beyond_four_gigabytes() -> None:
    """Sizes that need zip64, without the bytes: the headers are what Python's zip reader takes."""
    five, six = archive.Member("five", 5 << 30, 1, 0), archive.Member("six", 6, 2, (5 << 30) + 64)
    start = six.offset + six.size
    tail = archive._directory([five, six], start)

    class Sparse(io.RawIOBase):
        def __init__(self) -> None:
            self.position = 0

        def seekable(self) -> bool:
            return True

        def tell(self) -> int:
            return self.position

        def seek(self, offset: int, whence: int = 0) -> int:
            self.position = offset + {0: 0, 1: self.position, 2: start + len(tail)}[whence]
            return self.position

        def read(self, size: int = -1) -> bytes:
            begin = self.position - start
            data = tail[begin:] if size < 0 else tail[begin : begin + size]
            self.position += len(data)
            return data

    infos = {info.filename: info for info in zipfile.ZipFile(Sparse()).infolist()}  # type: ignore[type-var]
    assert (infos["five"].file_size, infos["five"].header_offset) == (5 << 30, 0)
    assert (infos["six"].file_size, infos["six"].header_offset) == (6, (5 << 30) + 64)
    assert five.offset % 64 == six.offset % 64 == 0


# --- stripped weights ---


@pytest.fixture
def stripped(tmp_path: Path) -> Path:
    path = tmp_path / "stripped.tsm"
    write_artifact(path, small(strip_weights=True))
    return path


def test_stripped_weights_are_demanded(stripped: Path) -> None:
    assert "weights.safetensors" not in read_artifact(stripped).member_names
    with pytest.raises(WeightsError, match="--strip-weights"):
        read_artifact(stripped).weights()


def test_stripped_weights_are_supplied(stripped: Path, tmp_path: Path) -> None:
    write_weights(tmp_path / "w.safetensors", WEIGHTS)
    for supplied in (tmp_path / "w.safetensors", WEIGHTS):
        raw = read_artifact(stripped).weights(supplied)
        assert {name: array.tobytes() for name, array in raw.items()} == {n: a.tobytes() for n, a in WEIGHTS.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": np.arange(5, dtype=np.float32)}, r"'w' is float32 \[5\]"),
        ({"w": np.arange(4)}, "'w' is int64"),
        ({"w": np.zeros(4, np.float32)}, "other values"),
    ],
)
def test_wrong_weights_are_refused(stripped: Path, tmp_path: Path, change: dict[str, np.ndarray], message: str) -> None:
    wrong = {**WEIGHTS, **change}
    write_weights(tmp_path / "w.safetensors", wrong)
    for supplied in (tmp_path / "w.safetensors", wrong):
        with pytest.raises(WeightsError, match=message):
            read_artifact(stripped).weights(supplied)


@pytest.mark.parametrize("content", [b"no weights", b"\x02\0\0\0\0\0\0\0[]"])
def test_a_file_that_holds_no_weights_is_named(stripped: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w").write_bytes(content)
    with pytest.raises(WeightsError, match=r"w is no safetensors file.*; give the weights that were written with the"):
        read_artifact(stripped).weights(tmp_path / "w")


@pytest.mark.parametrize("weights", [[], b"x"])
def test_what_is_neither_a_path_nor_arrays_by_name_is_no_weights(stripped: Path, weights: Any) -> None:
    with pytest.raises(WeightsError, match="give the path of a safetensors file, or arrays by name"):
        load(stripped, weights=weights)


def test_a_number_is_no_file_that_is_opened_and_closed(stripped: Path, tmp_path: Path) -> None:
    with (tmp_path / "mine").open("w") as mine:
        with pytest.raises(NotAnArtifactError, match="no path of a file"):
            load(mine.fileno())  # type: ignore[arg-type]
        with pytest.raises(WeightsError):
            load(stripped, weights=mine.fileno())  # type: ignore[arg-type]
        mine.write("still open")


def test_missing_weights_are_named(stripped: Path) -> None:
    with pytest.raises(WeightsError, match="1 weights are missing: w"):
        read_artifact(stripped).weights({name: array for name, array in WEIGHTS.items() if name != "w"})


def test_the_weights_hash_can_be_skipped() -> None:
    data = bytearray(image())
    position = data.index(WEIGHTS["noise"].tobytes())
    data[position] ^= 1
    with pytest.raises(ArtifactIntegrityError, match=r"weights\.safetensors"):
        read_artifact(bytes(data))
    assert read_artifact(bytes(data), verify=False).weights()["noise"][0] != WEIGHTS["noise"][0]


def test_manifest_damage_is_found_by_its_checksum() -> None:
    data = bytearray(image())
    manifest = archive.read_directory(memoryview(data), "image")["manifest.json"]
    position = manifest.offset + manifest.size // 2
    data[position] ^= 1
    with pytest.raises(ArtifactIntegrityError, match=r"manifest\.json"):
        read_artifact(bytes(data))
    assert zlib.crc32(bytes(data)) != zlib.crc32(image())
