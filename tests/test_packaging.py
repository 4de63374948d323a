"""The tree as a package: what the wheel holds, what imports what."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("runtime", "compiler", "cost_model", "passes", "codegen")
FOR_DEVELOPERS = ("compiler/conformance", "compiler/measure", "compiler/pages", "cost_model/training")
"""What only a checkout uses."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that it is made of what is there and not of what an earlier build left."""
    folder = tmp_path_factory.mktemp("wheel")
    tracked = [*FOLDERS, "package", "pyproject.toml", "setup.py", "README.md", "LICENSE"]
    subprocess.run(["cp", "-r", *tracked, str(folder)], cwd=ROOT, check=True)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "-w", "out", "."], cwd=folder, check=True, capture_output=True)
    (path,) = (folder / "out").glob("tilestitch-*.whl")
    return path


def test_the_runtime_is_a_small_part_of_a_small_wheel(wheel: Path) -> None:
    """What a machine that only runs models needs is far below a megabyte; the compiler comes in the same wheel,
    and what its cost models were trained to."""
    members = zipfile.ZipFile(wheel).infolist()
    runtime = [m for m in members if m.filename.count("/") == 1 or m.filename.startswith("tilestitch/runtime/")]
    assert sum(m.compress_size for m in runtime) < 400_000
    trained = [m for m in members if m.filename.startswith("tilestitch/cost_model/") and m.filename.endswith(".json")]
    assert sum(m.file_size for m in trained) < 2_000_000
    assert wheel.stat().st_size - sum(m.compress_size for m in trained) < 2_000_000
    strays = {m.filename: m.file_size for m in members if m not in trained and m.file_size > 64_000}
    assert list(strays) == [next(m.filename for m in members if m.filename.endswith("/RECORD"))]


def test_wheel_holds_every_module_under_one_name(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {f"tilestitch/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    folders = {f"tilestitch/{folder}" for folder in FOR_DEVELOPERS}
    for_developers = {name for name in modules if name.rpartition("/")[0] in folders}
    assert len({name.rpartition("/")[0] for name in for_developers}) == len(FOR_DEVELOPERS)
    assert not for_developers & names
    assert modules - for_developers <= names
    assert {name.split("/")[0] for name in names if not name.startswith("tilestitch-")} == {"tilestitch"}


def test_the_wheel_imports_nothing_that_only_a_checkout_has(wheel: Path) -> None:
    lacking = tuple(f"tilestitch.{folder.replace('/', '.')}" for folder in FOR_DEVELOPERS)
    archive = zipfile.ZipFile(wheel)
    found = [
        (name, imported)
        for name in archive.namelist() if name.endswith(".py")
        for imported in _imported(name, archive.read(name).decode()) if imported.startswith(lacking)
    ]  # fmt: skip
    assert found == []


def _imported(name: str, text: str) -> Iterator[str]:
    """Names that a module imports, from the root."""
    package = name.split("/")[:-1]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            start = [*above, *([node.module] if node.module else [])]
            yield from (".".join([*start, alias.name]) for alias in node.names)


def test_every_folder_of_modules_is_a_package() -> None:
    modules = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert [str(path) for path in modules if not (path.parent / "__init__.py").exists()] == []


@pytest.mark.parametrize("name", ["py.typed", "compiler/report.html", "codegen/cpu/executor.ll"])
def test_wheel_holds_the_files_that_are_no_modules(wheel: Path, name: str) -> None:
    assert f"tilestitch/{name}" in zipfile.ZipFile(wheel).namelist()


def test_the_installed_package_is_found_from_the_root_of_a_checkout_too(wheel: Path, tmp_path: Path) -> None:
    """Python looks into the working folder first: nothing there may look like the package."""
    zipfile.ZipFile(wheel).extractall(tmp_path)
    script = f"import sys; sys.path.insert(1, {str(tmp_path)!r}); import tilestitch.runtime; print(tilestitch.__file__)"
    command = [sys.executable, "-S", "-c", f"import sys; sys.path += {sys.path!r}; {script}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == str(tmp_path / "tilestitch" / "__init__.py"), done.stderr


def test_no_import_works_from_the_root_of_the_repository_only() -> None:
    found = []
    for folder in (*FOLDERS, "tests", "examples", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.level == 0:
                    names = [node.module or ""]
                found += [f"{path}:{node.lineno}" for name in names if name.split(".")[0] in FOLDERS]
    assert found == []


@pytest.fixture(scope="module")
def imports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What imports what, for types only included, read from a folder that shows the tree as it is installed."""
    shown = tmp_path_factory.mktemp("tree") / "tilestitch"
    shown.mkdir()
    for name in FOLDERS:
        (shown / name).symlink_to(ROOT / name)
    (shown / "__init__.py").symlink_to(ROOT / "package" / "__init__.py")
    script = (
        "import grimp, json\n"
        "graph = grimp.build_graph('tilestitch', exclude_type_checking_imports=False, cache_dir=None)\n"
        "print(json.dumps({m: sorted(graph.find_modules_directly_imported_by(m)) for m in graph.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=shown.parent, check=True, capture_output=True, text=True)
    result: dict[str, list[str]] = json.loads(done.stdout)
    return result


def test_no_module_imports_itself_by_a_detour(imports: dict[str, list[str]]) -> None:
    finished: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module in finished:
            return
        for imported in imports[module]:
            visit(imported, (*path, module))
        finished.add(module)

    for module in imports:
        visit(module, ())
