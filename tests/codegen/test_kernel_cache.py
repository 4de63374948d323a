"""Compiled kernels on disk: nothing but what was stored comes back, and no more is kept than may be."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tilestitch.codegen import kernel_cache
from tilestitch.codegen.kernel_cache import FOLDERS, KernelCache, code_generator, key_of

KEY, OTHER = key_of("a"), key_of("b")


def entry(folder: Path, key: str = KEY) -> Path:
    (path,) = folder.rglob(key)
    return path


def test_what_is_stored_comes_back_under_its_own_key(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "new" / "folder")
    assert cache.read(KEY) is None
    cache.write(KEY, b"machine code")
    cache.write(OTHER, b"")
    assert (cache.read(KEY), cache.read(OTHER)) == (b"machine code", b"")


def test_keys_tell_apart_where_parts_end() -> None:
    assert len({key_of("ab", "c"), key_of("a", "bc"), key_of("abc"), key_of("abc", "")}) == 4


def test_damaged_entries_are_none(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    cache.write(KEY, b"machine code")
    path = entry(tmp_path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert cache.read(KEY) is None, f"cut off after {length} bytes"
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert cache.read(KEY) is None, f"byte {at} differs"
    cache.write(KEY, b"machine code")
    assert cache.read(KEY) == b"machine code"


def test_an_entry_under_the_name_of_another_is_none(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    cache.write(KEY, b"a")
    cache.write(OTHER, b"b")
    entry(tmp_path).write_bytes(entry(tmp_path, OTHER).read_bytes())
    assert (cache.read(KEY), cache.read(OTHER)) == (None, b"b")


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owners here")
def test_what_another_user_wrote_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KernelCache(tmp_path)
    cache.write(KEY, b"machine code")
    facts = os.stat_result((0o100600, 0, 0, 1, 1234, 0, 44, 0, 0, 0))
    monkeypatch.setattr(os, "fstat", lambda number: facts)
    monkeypatch.setattr(os, "geteuid", lambda: 1235)
    assert cache.read(KEY) is None
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    assert cache.read(KEY) == b"machine code"


def of_one_folder(count: int) -> list[str]:
    return [f"ab{number:062}" for number in range(count)]


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    cache, keys = KernelCache(tmp_path, limit_bytes=1000 * FOLDERS), of_one_folder(6)
    for number, key in enumerate(keys[:5]):
        cache.write(key, bytes(150))  # 182 bytes of 1000
        os.utime(entry(tmp_path, key), (number, number))
    assert cache.read(keys[0]) is not None  # used now
    cache.write(keys[5], bytes(150))
    kept = {path.name for path in tmp_path.rglob("*")}
    assert [key in kept for key in keys] == [True, False, False, True, True, True]  # 728 bytes of 750


def test_what_is_within_the_limit_stays(tmp_path: Path) -> None:
    cache, keys = KernelCache(tmp_path, limit_bytes=1000 * FOLDERS), of_one_folder(5)
    for key in keys:
        cache.write(key, bytes(150))
    assert all(cache.read(key) is not None for key in keys)


def test_readers_find_all_of_an_entry_or_nothing(tmp_path: Path) -> None:
    cache, data = KernelCache(tmp_path), bytes(1 << 16)
    with ThreadPoolExecutor(4) as pool:
        written = [pool.submit(cache.write, KEY, data) for _ in range(50)]
        found = list(pool.map(lambda _: cache.read(KEY), range(200)))
        assert all(one.result() is None for one in written)
    assert set(found) <= {None, data} and cache.read(KEY) == data
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [KEY]


def test_a_file_that_cannot_be_written_whole_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    KernelCache(tmp_path).write(KEY, b"machine code")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_what_is_no_file_is_no_entry_and_stays(tmp_path: Path) -> None:
    """A pipe is not waited for; a folder does not end the search for what may go."""
    keys, cache = of_one_folder(20), KernelCache(tmp_path, limit_bytes=1000 * FOLDERS)
    (tmp_path / "ab" / "older").mkdir(parents=True)
    os.utime(tmp_path / "ab" / "older", (0, 0))
    os.mkfifo(tmp_path / "ab" / keys[0])
    assert cache.read(keys[0]) is None
    for key in keys:
        cache.write(key, bytes(400))
    kept = {path.name for path in (tmp_path / "ab").iterdir()}
    assert {"older", keys[19]} <= kept and len(kept) <= 3  # two of 432 bytes


def test_the_folder_is_the_user_s_alone_and_never_below_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "new"
    assert KernelCache(folder).why_not_kept() is None and folder.stat().st_mode & 0o077 == 0
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert kernel_cache.default_folder() == Path.home() / ".cache" / "tilestitch" / "kernels"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kernel_cache.default_folder() == tmp_path / "tilestitch" / "kernels"


def test_why_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    assert KernelCache(tmp_path).why_not_kept() is None
    reason = KernelCache(file / "below").why_not_kept()
    assert reason == f"the folder {file / 'below'} cannot be made (Not a directory)"
    KernelCache(file / "below").write(KEY, b"a")
    assert KernelCache(file / "below").read(KEY) is None
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert KernelCache(tmp_path).why_not_kept() == f"the folder {tmp_path} cannot be written"


def test_other_sources_are_another_code_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "_SOURCES", (tmp_path,))
    source = tmp_path / "lower" / "passes.py"
    source.parent.mkdir()
    found = set()
    for text in ("one", "two", "one"):
        source.write_text(text)
        code_generator.cache_clear()
        found.add(code_generator())
    code_generator.cache_clear()
    assert len(found) == 2
