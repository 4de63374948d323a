"""Plug-ins: where they are found, what they are given, and what is refused."""

import importlib.metadata
import inspect
import shutil
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tilestitch.compiler.ir import Graph
from tilestitch.passes import PassContext, PassResult, PipelineError, PluginError, load_plugins
from tilestitch.passes.plugins.faults import Identity
from tilestitch.passes.plugins.load import ENTRY_POINT_GROUP, Installed, collect, entry_points

SOURCE = """
from dataclasses import dataclass
from typing import ClassVar
from tilestitch.passes import PassResult

@dataclass(frozen=True)
class Double:
    times: int = 2
    name: ClassVar[str] = "double"

    def run(self, graph, context):
        return PassResult(graph, False)

@dataclass(frozen=True)
class Needy:
    word: str
    name: ClassVar[str] = "needy"

    def run(self, graph, context):
        return PassResult(graph, False)

class NotFrozen:
    name = "not_frozen"

    def run(self, graph, context):
        return PassResult(graph, False)

@dataclass(frozen=True)
class HalfRule:
    name: ClassVar[str] = "half_rule"

    def propose(self, state):
        return iter(())

@dataclass(frozen=True)
class Idle:
    name: ClassVar[str] = "idle"

@dataclass(frozen=True)
class Spaced:
    name: ClassVar[str] = "two words"

    def run(self, graph, context):
        return PassResult(graph, False)

@dataclass(frozen=True)
class Newer:
    name: ClassVar[str] = "newer"
    api_version: ClassVar[int] = 99

    def run(self, graph, context):
        return PassResult(graph, False)
"""


NONE = Installed()


@dataclass(frozen=True)
class Other:
    name: ClassVar[str] = "double"

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        return PassResult(graph, False)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "plugin_under_test.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "plugin_under_test", raising=False)
    return "plugin_under_test"


def entry(name: str, value: str) -> importlib.metadata.EntryPoint:
    return importlib.metadata.EntryPoint(name, value, ENTRY_POINT_GROUP)


def test_a_class_named_on_the_command_line_gets_its_arguments(module: str) -> None:
    loaded = load_plugins([f"{module}:Double{{times=3}}"], NONE)
    assert [(p.name, p.instance.times) for p in loaded.passes] == [("double", 3)]
    (record,) = loaded.records
    assert (record.name, record.owner) == ("double", f"--pass {module}:Double")
    assert len(record.content_hash) == 64


def test_the_content_hash_changes_with_the_code(module: str, tmp_path: Path) -> None:
    before = load_plugins([f"{module}:Double"], NONE).records[0].content_hash
    (tmp_path / "plugin_under_test.py").write_text(SOURCE + "# changed\n")
    assert load_plugins([f"{module}:Double"], NONE).records[0].content_hash != before


def test_installed_plugins_take_part_with_their_defaults(module: str) -> None:
    loaded = load_plugins((), collect([entry("double", f"{module}:Double")]))
    assert [p.instance.times for p in loaded.passes] == [2]


def test_an_installed_plugin_named_with_arguments_takes_part_once(module: str) -> None:
    loaded = load_plugins(["double{times=5}"], collect([entry("double", f"{module}:Double")]))
    assert [p.instance.times for p in loaded.passes] == [5]


def test_built_in_passes_can_be_named_and_are_not_recorded() -> None:
    loaded = load_plugins(["algebra{reassociate=false}"], NONE)
    assert [p.name for p in loaded.passes] == ["algebra"] and loaded.records == ()


def test_two_owners_of_one_name_are_both_named(module: str) -> None:
    installed = Installed({"double": Identity(Other, "other-package 1.0", installed=True)})
    with pytest.raises(PluginError, match=rf"both .*other-package 1\.0\) and .*{module}:Double.* supply 'double'"):
        load_plugins([f"{module}:Double"], installed)


def test_a_name_of_tilestitch_itself_is_taken(module: str, tmp_path: Path) -> None:
    (tmp_path / "thief.py").write_text(SOURCE.replace('"double"', '"algebra"'))
    with pytest.raises(PluginError, match=r"both tilestitch and .*thief:Double.* supply 'algebra'"):
        load_plugins(["thief:Double"], NONE)


BAD: dict[str, tuple[type[Exception], str]] = {
    "{m}:Missing": (PluginError, "has no attribute 'Missing'"),
    "no_such_module_here:X": (PluginError, "No module named"),
    "{m}:NotFrozen": (PluginError, "is no dataclass"),
    "{m}:Idle": (PluginError, "has none of the methods of a plug-in"),
    "{m}:Spaced": (PluginError, "has the name 'two words'; take letters"),
    "{m}:Needy": (PipelineError, "needs word"),
    "{m}:Double{{times=x}}": (PipelineError, "x is no int"),
    "missing": (PipelineError, "no pass 'missing'.*MODULE:CLASS"),
}


@pytest.mark.parametrize("text", BAD)
def test_what_cannot_be_loaded_says_why(text: str, module: str) -> None:
    error, message = BAD[text]
    with pytest.raises(error, match=message):
        load_plugins([text.format(m=module)], NONE)


def test_a_rule_may_have_one_of_its_methods(module: str) -> None:
    (rule,) = load_plugins([f"{module}:HalfRule"], NONE).rules
    assert rule.name == "half_rule"


def test_instances_and_classes_will_do() -> None:
    loaded = load_plugins([Other(), Other], NONE)
    assert [p.instance for p in loaded.passes] == [Other(), Other()]
    assert [r.owner for r in loaded.records] == [f"given in Python: {__name__}:Other"]


def test_an_instance_that_cannot_be_made_is_told_with_its_line(tmp_path: Path, module: str) -> None:
    text = SOURCE.replace("    times: int = 2\n", "    times: int = 2\n    def __post_init__(self): 1 / 0\n")
    (tmp_path / "plugin_under_test.py").write_text(text)
    line = next(n for n, text in enumerate(text.splitlines(), 1) if "1 / 0" in text)
    with pytest.raises(PluginError, match=rf"plug-in double .*ZeroDivisionError: .*plugin_under_test\.py:{line}"):
        load_plugins([f"{module}:Double"], NONE)


def test_one_plugin_needs_no_list_around_it(module: str) -> None:
    assert [p.name for p in load_plugins(f"{module}:Double", NONE).passes] == ["double"]
    assert [p.instance for p in load_plugins(Other(), NONE).passes] == [Other()]


def test_a_class_of_a_notebook_is_hashed_by_its_own_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the module has no file, and `inspect` knows the cells."""
    notebook = types.ModuleType("cells")
    monkeypatch.setitem(sys.modules, "cells", notebook)
    text = SOURCE.partition("@dataclass(frozen=True)\nclass Needy")[0]
    exec(compile(text, "<cell 1>", "exec"), notebook.__dict__)
    monkeypatch.setattr(inspect, "getsource", lambda cls: text)
    (record,) = load_plugins([notebook.Double()], NONE).records
    assert len(record.content_hash) == 64
    monkeypatch.setattr(inspect, "getsource", raise_os_error)
    with pytest.raises(PluginError, match=r"cells:Double has no source.*put it into a module"):
        load_plugins([notebook.Double()], NONE)


def raise_os_error(cls: type) -> str:
    raise OSError("could not get source code")


@pytest.mark.parametrize("odd", [3, b"m:C", None, int, object()])
def test_what_is_neither_text_class_nor_instance_is_refused(odd: Any) -> None:
    with pytest.raises(PluginError):
        load_plugins([odd], NONE)


def test_arguments_are_recorded_as_they_can_be_given(module: str) -> None:
    records = load_plugins([f"{module}:Double{{times=3}},{module}:Double"], NONE).records
    assert [r.arguments for r in records] == ["{times=3}", ""]


def test_arguments_that_no_artifact_could_record_are_refused() -> None:
    @dataclass(frozen=True)
    class Odd:
        table: Any = None
        name: ClassVar[str] = "odd"

        def run(self, graph: Graph, context: PassContext) -> PassResult:
            return PassResult(graph, False)

    with pytest.raises(PluginError, match="an artifact cannot record its arguments"):
        load_plugins([Odd(object())], NONE)


def test_broken_packages_are_named_and_the_others_take_part(module: str, tmp_path: Path) -> None:
    (tmp_path / "crashes.py").write_text("1 / 0\n")
    (tmp_path / "garbled.py").write_text("def (:\n")
    entries = [
        entry("double", f"{module}:Double"), entry("x", f"{module}:Missing"), entry("y", f"{module}:Double"),
        entry("crashes", "crashes:X"), entry("garbled", "garbled:X"), entry("newer", f"{module}:Newer"),
        entry("not_frozen", f"{module}:NotFrozen"),
    ]  # fmt: skip
    loaded = load_plugins((), collect(entries))
    assert [p.name for p in loaded.passes] == ["double"]
    said = "\n".join(loaded.warnings)
    for part in (
        "has no attribute 'Missing'", "make them equal", "ZeroDivisionError: division by zero",
        f"at {tmp_path}/crashes.py:1", f"at {tmp_path}/garbled.py:1", "version 99 of tilestitch.passes.api",
        "is no dataclass",
    ):  # fmt: skip
        assert part in said
    with pytest.raises(PluginError, match=r"crashes\.py:1"):
        load_plugins(["crashes"], collect(entries))


def test_an_installed_plugin_without_defaults_takes_part_where_it_is_named(module: str) -> None:
    installed = collect([entry("needy", f"{module}:Needy")])
    assert load_plugins((), installed).passes == ()
    assert [p.instance.word for p in load_plugins(["needy{word=a}"], installed).passes] == ["a"]


def test_a_module_in_the_working_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lying_around.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    assert [p.name for p in load_plugins(["lying_around:Double"], NONE).passes] == ["double"]


def test_data_files_of_a_package_count_in_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "with_data"
    package.mkdir()
    (package / "__init__.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))

    def content_hash() -> str:
        return load_plugins(["with_data:Double"], NONE).records[0].content_hash

    before = content_hash()
    (package / "kernel.cu").write_text("// one")
    with_kernel = content_hash()
    (package / "kernel.cu").write_text("// two")
    assert len({before, with_kernel, content_hash()}) == 3


def test_data_files_that_a_module_names_count_in_its_hash(module: str, tmp_path: Path) -> None:
    (tmp_path / "plugin_under_test.py").write_text(SOURCE + "DATA_FILES = ('kernel.c',)\n")
    with pytest.raises(PluginError, match=r"kernel\.c cannot be read"):
        load_plugins([f"{module}:Double"], NONE)
    (tmp_path / "kernel.c").write_text("one")
    before = load_plugins([f"{module}:Double"], NONE).records
    (tmp_path / "kernel.c").write_text("two")
    assert load_plugins([f"{module}:Double"], NONE).records != before


def test_what_is_installed_meanwhile_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = entry_points()
    assert entry_points() == before
    installed = tmp_path / "late-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[tilestitch.passes]\nlate = late:Late\n")
    assert {e.name for e in entry_points()} - {e.name for e in before} == {"late"}
    shutil.rmtree(installed)
    assert entry_points() == before


def test_entry_points_of_two_packages_may_not_share_a_name(module: str, tmp_path: Path) -> None:
    (tmp_path / "second.py").write_text(SOURCE)
    with pytest.raises(PluginError, match=r"both .* supply 'double'.*--no-plugins"):
        collect([entry("double", f"{module}:Double"), entry("double", "second:Double")])


def test_any_object_that_is_no_class_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd.py").write_text("THING: int = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PluginError, match="is no dataclass"):
        load_plugins(["odd:THING"], NONE)
