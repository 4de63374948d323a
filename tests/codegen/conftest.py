"""Tile registers for the tests of kernels that use them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.amx import built, emulated
from tilestitch.runtime.cpu import features


@pytest.fixture(scope="module")
def unit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Tile registers of this CPU, or of the unit that stands for them."""
    if "amx_tile" in features.cpu_flags():
        reason = features.refused_tiles()
        if reason:
            pytest.skip(f"Linux keeps tile registers from this process: {reason}")
        yield None
        return
    with emulated(built(tmp_path_factory.mktemp("unit"))) as found:
        yield found


@pytest.fixture
def permitted(unit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime takes this CPU for one that has what the unit does."""
    if unit is not None:
        flags = features.cpu_flags() | {"amx_tile", "amx_int8", "amx_bf16"}
        monkeypatch.setattr(features, "cpu_flags", lambda: flags)
        monkeypatch.setattr(features, "refused_tiles", lambda: "")
