"""The table as a whole: complete, and cheap to import."""

from __future__ import annotations

import subprocess
import sys

from tilestitch.compiler.ir import OPS, Kind
from tilestitch.runtime.host import ALIASING, NON_DETERMINISTIC, TABLE


def test_every_primitive_has_a_meaning_but_the_one_whose_result_is_memory_of_the_callers() -> None:
    missing = [name for name, spec in OPS.items() if spec.kind is not Kind.CONTROL and name not in TABLE]
    assert missing == ["append"]


def test_names_tell_primitives_from_onnx_operators() -> None:
    own = {name for name in TABLE if name[0].islower()}
    assert own - set(OPS) == {"none", "dequantise_blocks"}


def test_marked_operators_exist() -> None:
    assert set(TABLE) >= ALIASING | NON_DETERMINISTIC


def test_importing_needs_numpy_and_the_standard_library_only() -> None:
    code = (
        "import sys, tilestitch.runtime.host\n"
        "names = {n.split('.')[0] for n in sys.modules if not n.startswith('_')}\n"
        "print(sorted(names - set(sys.stdlib_module_names) - {'numpy', 'tilestitch'}))"
    )
    result = subprocess.run([sys.executable, "-S", "-c", _with_paths(code)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def _with_paths(code: str) -> str:
    """-S leaves out site-packages' start-up hooks, which may import anything; the paths are set by hand."""
    return f"import sys; sys.path[:] = {sys.path!r}\n{_mapping()}{code}"


def _mapping() -> str:
    import tilestitch
    import tilestitch.runtime

    folders = {"tilestitch": list(tilestitch.__path__), "tilestitch.runtime": list(tilestitch.runtime.__path__)}
    return (
        f"import types\nfor name, folder in {folders!r}.items():\n"
        "    module = types.ModuleType(name); module.__path__ = folder; sys.modules[name] = module\n"
    )
