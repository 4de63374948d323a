"""The fake driver in place of the real one, for every test of this folder.

It uses the structures of cuda-bindings, which need no GPU; without the package there is nothing to test here.
"""

from __future__ import annotations

import gc
import importlib.util
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

HAS_BINDINGS = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.bindings") is not None
collect_ignore_glob = [] if HAS_BINDINGS else ["test_run.py", "test_errors.py"]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """One GPU of compute capability 9.0. Everything must have been given back at the end."""
    from tests.runtime.cuda.fake_driver import FakeDriver
    from tilestitch.runtime.cuda import backend
    from tilestitch.runtime.cuda.driver import Driver

    def opened() -> Driver:
        driver = Driver(stand_in)
        driver("cuInit", 0)
        return driver

    stand_in = FakeDriver(argument_counts={"increment": 2, "add": 3, "pick": 4})
    monkeypatch.setattr(backend, "load_driver", opened)
    monkeypatch.setattr(backend, "_devices", weakref.WeakValueDictionary())
    yield stand_in
    stand_in.fail.clear()
    gc.collect()
    assert stand_in.leaks() == {}
