"""Plug-ins: passes and fusion rules that other packages install, or that are named on the command line.

A package offers its classes in the entry-point group `tilestitch.passes`; the entry point's name is the class's `name`.
What is installed takes part in every compilation, with its default arguments. `--pass NAME{field=value}` gives an
installed or built-in one arguments, `--pass MODULE:CLASS{field=value}` brings in a class that is not installed. Names
are unique, whoever owns them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .contract import check_is_pass_class, content_hash, is_rule_class, is_schedule_class
from .errors import PipelineError, PluginError
from .fusion.planners import PLANNERS
from .pipeline import pass_table
from .pipeline_text import PassText, build_from_class, parse_text
from .plan import PluginRecord

ENTRY_POINT_GROUP = "tilestitch.passes"
BUILT_IN = "tilestitch"


@dataclass(frozen=True)
class Plugin:
    """A class that someone other than tilestitch supplies. `owner` is `distribution version`, or the `--pass` text."""

    name: str
    cls: type
    owner: str


@dataclass(frozen=True)
class LoadedPlugins:
    """What takes part in a compilation, for `PassContext(rules=…, plugins=…)`, `run_pipeline(extra=…)` and
    `assemble(schedules=…)`.
    """

    passes: tuple[Any, ...] = ()
    rules: tuple[Any, ...] = ()
    schedules: tuple[Any, ...] = ()
    records: tuple[PluginRecord, ...] = ()


def installed() -> dict[str, Plugin]:
    """Plug-ins of installed packages by name. Raises PluginError if one cannot be loaded or two share a name."""
    return collect(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))


def collect(entry_points: Iterable[importlib.metadata.EntryPoint]) -> dict[str, Plugin]:
    """The plug-ins behind `entry_points`, by name. Raises PluginError as `installed` does."""
    found: dict[str, Plugin] = {}
    for entry in sorted(set(entry_points), key=lambda e: (e.name, e.value)):
        owner = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value
        plugin = Plugin(entry.name, _loaded(entry, owner), owner)
        if plugin.cls.name != entry.name:  # type: ignore[attr-defined]
            raise PluginError(
                f"{owner}: entry point {entry.name!r} of group {ENTRY_POINT_GROUP} leads to a class of name "
                f"{plugin.cls.name!r}; make them equal"  # type: ignore[attr-defined]
            )
        _claim(found, plugin)
    return found


def _loaded(entry: importlib.metadata.EntryPoint, owner: str) -> type:
    try:
        cls = entry.load()
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"{owner}: {entry.value} cannot be loaded: {error}; repair or uninstall the package"
        ) from error
    check_is_pass_class(cls, owner)
    loaded: type = cls
    return loaded


def _claim(found: dict[str, Plugin], plugin: Plugin) -> None:
    if plugin.name in _built_in_names():
        _clash(plugin.name, BUILT_IN, plugin.owner)
    other = found.setdefault(plugin.name, plugin)
    if other.cls is not plugin.cls:
        _clash(plugin.name, other.owner, plugin.owner)


def _clash(name: str, first: str, second: str) -> None:
    raise PluginError(f"both {first} and {second} supply {name!r}; rename one of the two, or uninstall it")


def _built_in_names() -> set[str]:
    return {*pass_table(), *(rule.name for rules in PLANNERS.values() for rule in rules)}


def load_plugins(texts: Sequence[str] = (), available: dict[str, Plugin] | None = None) -> LoadedPlugins:
    """Instances of all plug-ins: those `available` (default: what is installed), and those that `texts` name.

    `texts` are `--pass` arguments, in order; a plug-in that they name more than once runs more than once. Raises
    PipelineError for a text that does not parse or fits no field, and PluginError for a class that cannot be loaded or
    whose name is taken.
    """
    available = installed() if available is None else dict(available)
    instances: list[tuple[Any, str]] = []
    named: set[str] = set()
    for text in texts:
        for entry in parse_text(text):
            instance, owner = _instance(entry, available, text)
            named.add(instance.name)
            instances.append((instance, owner))
    for plugin in available.values():
        if plugin.name not in named:
            instances.append((build_from_class(plugin.cls, PassText(plugin.name), {}), plugin.owner))
    passes = tuple(i for i, _ in instances if callable(getattr(i, "run", None)))
    rules = tuple(i for i, _ in instances if is_rule_class(type(i)))
    schedules = tuple(i for i, _ in instances if is_schedule_class(type(i)))
    records = {
        i.name: PluginRecord(i.name, owner, content_hash(type(i))) for i, owner in instances if owner != BUILT_IN
    }
    return LoadedPlugins(passes, rules, schedules, tuple(records.values()))


def _instance(entry: PassText, available: dict[str, Plugin], text: str) -> tuple[Any, str]:
    table = {**pass_table(), **{p.name: p.cls for p in available.values()}}
    if ":" in entry.name:
        plugin = _from_module(entry.name, text)
        _claim(available, plugin)
        return build_from_class(plugin.cls, entry, table), available[plugin.name].owner
    if entry.name in available:
        return build_from_class(available[entry.name].cls, entry, table), available[entry.name].owner
    if entry.name not in table:
        known = ", ".join(sorted(table))
        raise PipelineError(f"--pass {text}: there is no pass {entry.name!r}; known: {known}; or write MODULE:CLASS")
    return build_from_class(table[entry.name], entry, table), BUILT_IN


def _from_module(name: str, text: str) -> Plugin:
    module_name, _, class_name = name.partition(":")
    try:
        cls = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"--pass {text}: {error}; give an importable module and a class in it, as in my_package.passes:MyPass"
        ) from error
    check_is_pass_class(cls, f"--pass {text}")
    return Plugin(cls.name, cls, f"--pass {name}")
