"""TVM is imported without PyTorch, which stays importable."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tilestitch.codegen.without_torch import import_tvm

TVM = """
try:
    import torch
except ImportError:
    torch = None
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="TVM wants PyTorch first there")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that packages are imported from; what is installed of TVM and PyTorch counts as not imported."""
    for name in ("torch", "tvm", "tvm_ffi"):
        monkeypatch.setitem(sys.modules, name, sys)  # put back afterwards, whether it was there or not
        del sys.modules[name]
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "torch.py").write_text("")
    return tmp_path


def test_pytorch_is_hidden_from_tvm_only(folder: Path) -> None:
    (folder / "tvm.py").write_text(TVM)
    import_tvm()
    assert sys.modules["tvm"].torch is None
    import torch

    assert torch.__file__ == str(folder / "torch.py")


def test_other_threads_import_pytorch_meanwhile(folder: Path) -> None:
    (folder / "tvm.py").write_text(
        "import threading, importlib\nother = threading.Thread(target=lambda: importlib.import_module('torch'))\n"
        "try:\n    import torch\nexcept ImportError:\n    other.start()\n    other.join()\n"
    )
    import_tvm()
    assert sys.modules["torch"].__file__ == str(folder / "torch.py")


def test_pytorch_that_is_there_is_left_alone(folder: Path) -> None:
    (folder / "tvm.py").write_text(TVM)
    import torch

    import_tvm()
    assert sys.modules["torch"] is torch
    assert "tvm" not in sys.modules


def test_an_installation_that_is_broken_is_told_of_where_it_is_needed(folder: Path) -> None:
    (folder / "tvm.py").write_text("raise OSError('libtvm.so is not there')")
    import_tvm()
    assert "torch" not in sys.modules
    with pytest.raises(OSError, match=r"libtvm\.so is not there"):
        import tvm  # noqa: F401
