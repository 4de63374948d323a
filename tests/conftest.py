"""Settings of all tests: how many examples property tests draw, and what is skipped without a C++ compiler.

`pytest --hypothesis-profile=nightly` draws many more wherever a test does not say how many.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tilestitch.runtime.emulator import NoCompilerError

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("default", max_examples=25, **_COMMON)
settings.register_profile("nightly", max_examples=2000, **_COMMON)
settings.load_profile("default")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Tests that collect garbage, also in children of this process, need not look at the millions of objects that are
    there before the first test and stay: that took most of a second each time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # as the command does: to look through what compiling makes takes long


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Tests that execute on the emulated device are skipped where nothing can compile its kernels."""
    try:
        return (yield)
    except Exception as error:
        missing = next((e for e in _causes(error) if isinstance(e, NoCompilerError)), None)
        if missing is None:
            raise
        pytest.skip(str(missing))


def _causes(error: BaseException) -> Iterator[BaseException]:
    yield error
    for cause in {error.__cause__ or error.__context__, *getattr(error, "exceptions", ())} - {None}:
        yield from _causes(cause)
