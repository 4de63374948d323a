"""Stand-ins for the driver: `fake`, whose kernels are Python functions, and `on_standin`, a library in C++.

The first uses the structures of cuda-bindings, which need no GPU; without the package there is nothing to test here.
"""

from __future__ import annotations

import gc
import importlib.util
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.cuda.standin import build
from tests.runtime.cuda.standin.child import StandIn, run

HAS_BINDINGS = importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.bindings") is not None
collect_ignore_glob = [] if HAS_BINDINGS else ["test_run.py", "test_errors.py", "test_standin*.py"]


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

    stand_in = FakeDriver(
        argument_counts={"increment": 2, "add": 3, "pick": 4, "sized_increment": 3, "sized_double": 3}
    )
    monkeypatch.setattr(backend, "load_driver", opened)
    monkeypatch.setattr(backend, "_devices", weakref.WeakValueDictionary())
    yield stand_in
    stand_in.fail.clear()
    gc.collect()
    assert stand_in.leaks() == {}


@pytest.fixture(scope="session")
def standin_library() -> Path:
    """The strict stand-in with one H200; its tests are skipped where it cannot be built."""
    reason = build.missing()
    if reason is not None:
        pytest.skip(reason)
    return build.build()


@pytest.fixture
def on_standin(standin_library: Path) -> Callable[[Callable[[StandIn], Any]], None]:
    """Runs a function in a child of this process that has the stand-in; all must have been given back at its end."""
    return lambda function: run(standin_library, function)
