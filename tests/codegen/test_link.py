"""The linker makes libraries that the system's loader takes, from real objects of LLVM; what it cannot link it says."""

from __future__ import annotations

import contextlib
import ctypes
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.kernels import TRIPLE, kernel_library, kernel_object
from tilestitch.codegen.cpu.backend import EXECUTOR_EXPORTS, executor_object
from tilestitch.codegen.cpu.toolchain.link import link
from tilestitch.codegen.errors import LinkError

AARCH64 = "aarch64-linux-gnu"

# Everything that position-independent code may do: calls across objects, tables of pointers, zeroed data, strings, weak
# symbols.
ANSWER = """
@table = internal constant [3 x i64] [i64 10, i64 20, i64 30]
@counter = internal global i64 5
@zeroed = internal global [100 x i64] zeroinitializer
@pointers = internal constant [2 x ptr] [ptr @twice, ptr @helper]
define weak i64 @shared(i64 %x) { ret i64 1 }
define internal i64 @twice(i64 %x) { %y = mul i64 %x, 2 ret i64 %y }
declare i64 @helper(i64)
define i64 @lookup(i64 %i) {
  %p = getelementptr [3 x i64], ptr @table, i64 0, i64 %i
  %v = load i64, ptr %p
  ret i64 %v
}
define i64 @count() {
  %v = load i64, ptr @counter
  %n = add i64 %v, 1
  store i64 %n, ptr @counter
  %q = getelementptr [100 x i64], ptr @zeroed, i64 0, i64 99
  %z = load i64, ptr %q
  %r = add i64 %n, %z
  ret i64 %r
}
define i64 @dispatch(i64 %i, i64 %x) {
  %p = getelementptr [2 x ptr], ptr @pointers, i64 0, i64 %i
  %f = load ptr, ptr %p
  %v = call i64 %f(i64 %x)
  ret i64 %v
}
define i64 @call_shared() { %v = call i64 @shared(i64 0) ret i64 %v }
"""

HELPER = """
@limit = global i64 1000
declare double @exp(double)
declare double @pow(double, double)
define i64 @shared(i64 %x) { ret i64 2 }
define i64 @helper(i64 %x) {
  %l = load i64, ptr @limit
  %y = add i64 %x, %l
  ret i64 %y
}
define double @both(double %x) {
  %a = call double @exp(double %x)
  %b = call double @pow(double %x, double 2.5)
  %c = fadd double %a, %b
  ret double %c
}
"""


def assemble(tmp_path: Path, text: str, triple: str = TRIPLE) -> bytes:
    """The object of LLVM IR in text form."""
    source, target = tmp_path / "module.ll", tmp_path / "module.o"
    source.write_text(f'target triple = "{triple}"\n{text}')
    tvm.runtime.load_module(str(source)).write_to_file(str(target), "o")
    return target.read_bytes()


def load(tmp_path: Path, objects: Sequence[bytes], exports: Sequence[str]) -> ctypes.CDLL:
    path = tmp_path / "library.so"
    path.write_bytes(link(objects, exports))
    return ctypes.CDLL(str(path))


@pytest.fixture
def two_objects(tmp_path: Path) -> ctypes.CDLL:
    exports = ["lookup", "count", "dispatch", "call_shared", "both", "helper", "limit"]
    library = load(tmp_path, [assemble(tmp_path, ANSWER), assemble(tmp_path, HELPER)], exports)
    for name in ("lookup", "count", "dispatch", "call_shared"):
        getattr(library, name).restype = ctypes.c_int64
    library.both.restype, library.both.argtypes = ctypes.c_double, [ctypes.c_double]
    return library


def test_read_only_data_is_reachable(two_objects: ctypes.CDLL) -> None:
    assert [two_objects.lookup(i) for i in range(3)] == [10, 20, 30]


def test_data_is_writable_and_zeroed_data_is_zero(two_objects: ctypes.CDLL) -> None:
    assert [two_objects.count(), two_objects.count()] == [6, 7]


def test_pointers_in_tables_are_relocated_also_across_objects(two_objects: ctypes.CDLL) -> None:
    assert two_objects.dispatch(0, 21) == 42
    assert two_objects.dispatch(1, 21) == 1021


def test_a_strong_definition_wins_over_a_weak_one(two_objects: ctypes.CDLL) -> None:
    assert two_objects.call_shared() == 2


def test_libm_functions_are_called(two_objects: ctypes.CDLL) -> None:
    assert two_objects.both(1.5) == pytest.approx(np.exp(1.5) + 1.5**2.5, rel=1e-15)


def test_data_can_be_exported(two_objects: ctypes.CDLL) -> None:
    assert ctypes.c_int64.in_dll(two_objects, "limit").value == 1000


def test_only_exports_are_visible(two_objects: ctypes.CDLL) -> None:
    with pytest.raises(AttributeError):
        getattr(two_objects, "twice")  # noqa: B009


def test_kernels_of_tvm_compute(tmp_path: Path) -> None:
    names = ("increment", "exponential", "halve")
    library = load(tmp_path, [kernel_object(name) for name in names], names)

    def call(name: str, x: np.ndarray) -> np.ndarray:
        y = np.empty_like(x)
        args = np.array([[0, x.ctypes.data], [0, y.ctypes.data]], np.int64)
        getattr(library, name)(ctypes.c_void_p(args.ctypes.data), ctypes.c_int64(0), None)
        return y

    x = np.array([-1.5, 0, 1, 2], np.float32)
    np.testing.assert_array_equal(call("increment", x), x + 1)
    np.testing.assert_allclose(call("exponential", x), np.exp(x), rtol=1e-6)
    np.testing.assert_array_equal(call("halve", x.astype(np.float16)), x.astype(np.float16) / 2)


def test_the_same_input_gives_the_same_bytes() -> None:
    objects = [kernel_object("increment"), kernel_object("halve"), executor_object(TRIPLE)]
    exports = ["increment", "halve", *EXECUTOR_EXPORTS]
    assert link(objects, exports) == link(objects, exports[::-1])


def program_headers(image: bytes) -> list[tuple[int, ...]]:
    """Kind, rights, offset, address, physical address, bytes in the file, bytes in memory and alignment of each."""
    (offset, count) = struct.unpack_from("<Q", image, 32)[0], struct.unpack_from("<H", image, 56)[0]
    return [struct.unpack_from("<IIQQQQQQ", image, offset + 56 * i) for i in range(count)]


@pytest.mark.parametrize("triple", [TRIPLE, AARCH64])
def test_what_the_loader_protects_is_mapped_however_small_the_pages_are(triple: str) -> None:
    headers = program_headers(kernel_library(triple))
    (protected,) = (header for header in headers if header[0] == 0x6474E552)
    assert protected[3] % 0x1000 == (protected[3] + protected[6]) % 0x1000 == 0
    assert any(h[0] == 1 and h[3] == protected[3] and h[6] >= protected[6] for h in headers)


def test_no_memory_is_writable_and_executable() -> None:
    headers = program_headers(kernel_library())
    loads = [header for header in headers if header[0] == 1]
    assert [header[1] for header in loads[:3]] == [4, 5, 6]
    assert all(header[1] & 3 != 3 for header in headers)
    assert any(header[0] == 0x6474E551 for header in headers)  # a stack header, or the stack would be executable
    assert all(header[2] % 0x1000 == header[3] % 0x1000 for header in loads)


@pytest.mark.skipif(not shutil.which("readelf"), reason="readelf is not installed")
@pytest.mark.parametrize("triple", [TRIPLE, AARCH64])
def test_readelf_finds_nothing_wrong(tmp_path: Path, triple: str) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(kernel_library(triple))
    result = subprocess.run(["readelf", "-aW", str(path)], capture_output=True, text=True, check=True)
    assert not [line for line in result.stderr.splitlines() if "Unrecognized" not in line]
    assert "neighbours" in result.stdout


def test_an_undefined_symbol_is_named(tmp_path: Path) -> None:
    text = (
        "declare void @TVMBackendParallelLaunch()\ndefine void @f() { call void @TVMBackendParallelLaunch() ret void }"
    )
    with pytest.raises(LinkError, match="TVMBackendParallelLaunch"):
        link([assemble(tmp_path, text)], ["f"])


def test_a_symbol_defined_twice_is_named(tmp_path: Path) -> None:
    first = assemble(tmp_path, "define void @f() { ret void }")
    with pytest.raises(LinkError, match="f is defined in object 0 and in object 1"):
        link([first, first], ["f"])


def test_a_missing_export_is_named() -> None:
    with pytest.raises(LinkError, match="no object defines nothing_here"):
        link([kernel_object("increment")], ["nothing_here"])


def test_no_objects() -> None:
    with pytest.raises(LinkError, match="no object file"):
        link([], [])


def test_objects_of_two_machines_do_not_mix() -> None:
    with pytest.raises(LinkError, match="cannot be linked together"):
        link([executor_object("x86_64-linux-gnu"), executor_object(AARCH64)], EXECUTOR_EXPORTS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("@x = thread_local global i64 1\ndefine i64 @f() { %v = load i64, ptr @x ret i64 %v }", "thread-local"),
        (
            "@llvm.global_ctors = appending global [1 x { i32, ptr, ptr }] [{ i32, ptr, ptr } "
            "{ i32 1, ptr @f, ptr null }]\n"
            "define void @f() { ret void }",
            "constructors",
        ),
        ("@x = common global i64 0\ndefine i64 @f() { %v = load i64, ptr @x ret i64 %v }", "common"),
    ],
)
def test_what_kernels_cannot_have_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(LinkError, match=message):
        link([assemble(tmp_path, text)], ["f"])


def test_what_is_no_object_is_refused() -> None:
    for data in (b"", b"\x7fELF", b"PK\x03\x04" + bytes(100), kernel_library()):
        with pytest.raises(LinkError):
            link([data], [])


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_objects_never_crash_the_linker(data: st.DataObject) -> None:
    image = bytearray(kernel_object("exponential"))
    if data.draw(st.booleans()):
        del image[data.draw(st.integers(0, len(image) - 1)) :]
    else:
        position = data.draw(st.integers(0, len(image) - 1))
        image[position] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(LinkError):
        link([bytes(image)], ["exponential"])


def test_aarch64_code_refers_to_the_right_addresses(tmp_path: Path) -> None:
    """Decodes by hand what `lookup` does: adrp and add must give the address of the table."""
    image = link([assemble(tmp_path, ANSWER, AARCH64), assemble(tmp_path, HELPER, AARCH64)], ["lookup", "both"])
    position = image.index(struct.pack("<3q", 10, 20, 30))  # addresses are offsets in the file
    start = _symbol_address(image, "lookup")
    words = struct.unpack_from("<8I", image, start)
    adrp = next(i for i, word in enumerate(words) if word & 0x9F000000 == 0x90000000)
    add = next(i for i, word in enumerate(words) if word & 0xFF800000 == 0x91000000)
    pages = (words[adrp] >> 29 & 3) | (words[adrp] >> 5 & 0x7FFFF) << 2
    pages -= (pages & 1 << 20) << 1
    page = ((start + 4 * adrp) >> 12) + pages
    assert (page << 12) + (words[add] >> 10 & 0xFFF) == position


def _symbol_address(image: bytes, name: str) -> int:
    sections, count = struct.unpack_from("<Q", image, 40)[0], struct.unpack_from("<H", image, 60)[0]
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, sections + 64 * i) for i in range(count)]
    symbols = next(header for header in headers if header[1] == 11)
    strings = headers[symbols[6]]
    for offset in range(symbols[4], symbols[4] + symbols[5], 24):
        entry = struct.unpack_from("<IBBHQQ", image, offset)
        start = strings[4] + entry[0]
        if image[start : image.index(b"\0", start)].decode() == name:
            return int(entry[4])
    raise AssertionError(f"no symbol {name}")
