"""The fake driver in place of the real one, for every test of this folder."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

pytest.importorskip("cuda.bindings.driver", reason="its structures are used; pip install 'tilestitch[cuda]'")

from tests.runtime.cuda.fake_driver import FakeDriver
from tilestitch.runtime.cuda import backend
from tilestitch.runtime.cuda.driver import Driver


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """One GPU of compute capability 9.0. Everything must have been given back at the end."""
    driver = FakeDriver(argument_counts={"increment": 2, "add": 3, "pick": 4})
    monkeypatch.setattr(backend, "load_driver", lambda: _opened(driver))
    monkeypatch.setattr(backend, "_devices", weakref.WeakValueDictionary())
    yield driver
    driver.fail.clear()
    gc.collect()
    assert driver.leaks() == {}


def _opened(fake: FakeDriver) -> Driver:
    driver = Driver(fake)
    driver("cuInit", 0)
    return driver
