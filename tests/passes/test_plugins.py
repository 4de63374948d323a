"""Plug-ins: where they are found, what they are given, and what is refused."""

import importlib.metadata
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tilestitch.compiler.ir import Graph
from tilestitch.passes import PassContext, PassResult, PipelineError, PluginError, load_plugins
from tilestitch.passes.plugins import ENTRY_POINT_GROUP, Plugin, collect

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
"""


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
    loaded = load_plugins([f"{module}:Double{{times=3}}"], {})
    assert [(p.name, p.times) for p in loaded.passes] == [("double", 3)]
    (record,) = loaded.records
    assert (record.name, record.owner) == ("double", f"--pass {module}:Double")
    assert len(record.content_hash) == 64


def test_the_content_hash_changes_with_the_code(module: str, tmp_path: Path) -> None:
    before = load_plugins([f"{module}:Double"], {}).records[0].content_hash
    (tmp_path / "plugin_under_test.py").write_text(SOURCE + "# changed\n")
    assert load_plugins([f"{module}:Double"], {}).records[0].content_hash != before


def test_installed_plugins_take_part_with_their_defaults(module: str) -> None:
    loaded = load_plugins((), collect([entry("double", f"{module}:Double")]))
    assert [p.times for p in loaded.passes] == [2]


def test_an_installed_plugin_named_with_arguments_takes_part_once(module: str) -> None:
    loaded = load_plugins(["double{times=5}"], collect([entry("double", f"{module}:Double")]))
    assert [p.times for p in loaded.passes] == [5]


def test_built_in_passes_can_be_named_and_are_not_recorded() -> None:
    loaded = load_plugins(["algebra{reassociate=false}"], {})
    assert [p.name for p in loaded.passes] == ["algebra"] and loaded.records == ()


def test_two_owners_of_one_name_are_both_named(module: str) -> None:
    available = {"double": Plugin("double", Other, "other-package 1.0")}
    with pytest.raises(PluginError, match=rf"both other-package 1\.0 and --pass {module}:Double supply 'double'"):
        load_plugins([f"{module}:Double"], available)


def test_a_name_of_tilestitch_itself_is_taken(module: str, tmp_path: Path) -> None:
    (tmp_path / "thief.py").write_text(SOURCE.replace('"double"', '"algebra"'))
    with pytest.raises(PluginError, match="both tilestitch and --pass thief:Double supply 'algebra'"):
        load_plugins(["thief:Double"], {})


BAD: dict[str, tuple[type[Exception], str]] = {
    "{m}:Missing": (PluginError, "has no attribute 'Missing'"),
    "no_such_module_here:X": (PluginError, "No module named"),
    "{m}:NotFrozen": (PluginError, "is no dataclass"),
    "{m}:HalfRule": (PluginError, "needs both `propose` and `forbid`"),
    "{m}:Needy": (PipelineError, "needs word"),
    "{m}:Double{{times=x}}": (PipelineError, "x is no int"),
    "nobody": (PipelineError, "no pass 'nobody'.*MODULE:CLASS"),
}


@pytest.mark.parametrize("text", BAD)
def test_what_cannot_be_loaded_says_why(text: str, module: str) -> None:
    error, message = BAD[text]
    with pytest.raises(error, match=message):
        load_plugins([text.format(m=module)], {})


def test_an_entry_point_that_cannot_be_loaded_or_is_misnamed_is_an_error(module: str) -> None:
    with pytest.raises(PluginError, match="cannot be loaded"):
        collect([entry("x", f"{module}:Missing")])
    with pytest.raises(PluginError, match="make them equal"):
        collect([entry("x", f"{module}:Double")])


def test_entry_points_of_two_packages_may_not_share_a_name(module: str, tmp_path: Path) -> None:
    (tmp_path / "second.py").write_text(SOURCE)
    with pytest.raises(PluginError, match=r"both .* supply 'double'"):
        collect([entry("double", f"{module}:Double"), entry("double", "second:Double")])


def test_any_object_that_is_no_class_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd.py").write_text("THING: int = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    context: Any = {}
    with pytest.raises(PluginError, match="is no dataclass"):
        load_plugins(["odd:THING"], context)
