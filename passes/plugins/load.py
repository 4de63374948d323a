"""Loading of plug-ins, both those installed by other packages and those given to a compilation.

A package registers its classes in the entry-point group `tilestitch.passes`; the entry point's name is the class's
`name`. Installed plug-ins take part in every compilation with default arguments, unless excluded; classes without
defaults for all arguments only where they are named. `--pass NAME{field=value}` sets arguments of an installed or
built-in one, `--pass MODULE:CLASS{field=value}` adds a class that is not installed, and Python callers may pass a class
or an instance. Names are unique across owners.

Only `load_plugins` imports modules of plug-ins.
"""

import dataclasses
import importlib
import importlib.metadata
import inspect
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilestitch.cost_model.protocol import LatencyModel
from tilestitch.passes.contract import PLACES
from tilestitch.passes.errors import PipelineError, PluginError
from tilestitch.passes.fusion.planners import PLANNERS
from tilestitch.passes.pipeline import pass_table
from tilestitch.passes.pipeline_text import PassText, arguments_text, build_from_class, parse_text, required_fields
from tilestitch.passes.plan import PluginRecord
from tilestitch.passes.sync.policies import Policy

from .bases import API_VERSION
from .faults import Identity, import_fault, told
from .guards import GuardedModel, GuardedPass, GuardedRule, GuardedSchedule
from .sources import content_hash, qualified

METHODS = ("run", "propose", "forbid", "combine", "schedule", "latency_us", "predict")


def check_class(cls: Any, owner: str) -> None:
    """Raise PluginError, naming `owner`, class and line, unless `cls` is a frozen dataclass that is a plug-in."""
    problem = _problem(cls)
    if problem:
        raise PluginError(f"{owner}: {_named(cls)} {problem}; docs/plugins.md says what a plug-in looks like")


def is_pass(cls: type) -> bool:
    return _has(cls, "run")


def is_rule(cls: type) -> bool:
    return any(_has(cls, method) for method in ("propose", "forbid", "combine"))


def is_schedule(cls: type) -> bool:
    return _has(cls, "schedule")


def is_model(cls: type) -> bool:
    return _has(cls, "latency_us") or _has(cls, "predict")


def _has(cls: Any, method: str) -> bool:
    return callable(getattr(cls, method, None))


def _problem(cls: Any) -> str | None:
    if not inspect.isclass(cls) or not dataclasses.is_dataclass(cls):
        return "is no dataclass"
    if "__dataclass_params__" not in vars(cls):
        return "is no dataclass itself, only its base is: write @dataclass(frozen=True) above it"
    if not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return "is a dataclass that is not frozen: write @dataclass(frozen=True)"
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name:
        return "has no class variable `name`"
    if not name.isidentifier() or not name.isascii():
        return f"has the name {name!r}; take letters, digits and underscores, so that --pass can spell it"
    if not any(_has(cls, method) for method in METHODS):
        return f"has none of the methods of a plug-in: {', '.join(METHODS)}"
    if inspect.isabstract(cls):
        return f"does not define {', '.join(sorted(cls.__abstractmethods__))}, which its base class asks for"
    version = getattr(cls, "api_version", 1)
    if version != API_VERSION:
        other = "tilestitch" if isinstance(version, int) and version > API_VERSION else "the plug-in"
        return (
            f"was written for version {version!r} of tilestitch.passes.api, and this tilestitch has version "
            f"{API_VERSION}: install a newer version of {other}"
        )
    if getattr(cls, "place", PLACES[-1]) not in PLACES:
        return f"has the place {cls.place!r}, which is none of {', '.join(PLACES)}"  # type: ignore[attr-defined]
    return None


def _named(cls: Any) -> str:
    if not inspect.isclass(cls):
        return repr(cls)
    try:
        line = f" at {inspect.getsourcefile(cls)}:{inspect.getsourcelines(cls)[1]}"
    except (OSError, TypeError):  # there is no source
        line = ""
    return f"class {qualified(cls)}{line}"


ENTRY_POINT_GROUP = "tilestitch.passes"
BUILT_IN = "tilestitch"
IN_PYTHON = "given in Python"

Named = str | type | object
"""A plug-in given to a compilation: the text of a `--pass` option, a class, or an instance."""


@dataclass(frozen=True)
class Installed:
    """Plug-ins of installed packages by name; `broken` holds the reasons, by name, why some cannot take part."""

    available: Mapping[str, Identity] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LoadedPlugins:
    """The plug-ins of a compilation, for `PassContext(rules=…, plugins=…)`, `run_pipeline(extra=…)` and
    `assemble(schedules=…)`. `warnings`: installed plug-ins that cannot take part.
    """

    passes: tuple[Any, ...] = ()
    rules: tuple[GuardedRule, ...] = ()
    schedules: tuple[GuardedSchedule, ...] = ()
    cost_model: LatencyModel | None = None
    records: tuple[PluginRecord, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Member:
    """A participating instance. `identity` is None for a pass of tilestitch itself."""

    instance: Any
    identity: Identity | None


def entry_points() -> tuple[importlib.metadata.EntryPoint, ...]:
    """Return the entry points of installed packages, without importing them."""
    return _entry_points(tuple((folder, _state(folder)) for folder in sys.path))


@lru_cache(maxsize=1)
def _entry_points(folders: tuple[tuple[str, object], ...]) -> tuple[importlib.metadata.EntryPoint, ...]:
    """Return the entry points in these folders, in this state; cached, since searching all installed packages takes as
    long as planning a small model.
    """
    return tuple(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))


def _state(folder: str) -> object:
    """Return a value that changes when a package is installed in a folder or removed from it."""
    try:
        found = os.stat(folder or ".")
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def owner_of(entry: importlib.metadata.EntryPoint) -> str:
    """Return `distribution version` of an entry point."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value


def collect(entries: Iterable[importlib.metadata.EntryPoint]) -> Installed:
    """Import the targets of `entries`. Raises PluginError if two share a name, or one has a name of tilestitch."""
    available: dict[str, Identity] = {}
    broken: dict[str, str] = {}
    for entry in sorted(set(entries), key=lambda e: (e.name, e.value)):
        try:
            identity = _loaded(entry)
        except PluginError as error:
            broken[entry.name] = str(error)
            continue
        _claim(available, identity)
    return Installed(available, broken)


def _loaded(entry: importlib.metadata.EntryPoint) -> Identity:
    owner = owner_of(entry)
    try:
        cls = entry.load()
    except (Exception, SystemExit) as error:
        raise import_fault(owner, entry.value, error) from error
    check_class(cls, owner)
    if cls.name != entry.name:
        raise PluginError(
            f"{owner}: entry point {entry.name!r} of group {ENTRY_POINT_GROUP} leads to a class of name {cls.name!r}; "
            "make them equal"
        )
    return Identity(cls, owner, installed=True)


def _claim(found: dict[str, Identity], identity: Identity) -> None:
    name = identity.name
    if name in _built_in_names():
        _clash(name, BUILT_IN, identity)
    other = found.setdefault(name, identity)
    if other.cls is not identity.cls:
        _clash(name, str(other), identity)


def _clash(name: str, first: str, second: Identity) -> None:
    raise PluginError(
        f"both {first} and {second} supply {name!r}; rename one of the two, uninstall it, or compile with --no-plugins"
    )


def _built_in_names() -> set[str]:
    return {*pass_table(), *(rule.name for rules in PLANNERS.values() for rule in rules)}


def load_plugins(given: Sequence[Named] | Named | None = (), installed: Installed | None = None) -> LoadedPlugins:
    """Return the plug-ins that take part: those `given` (several, one or None), then all `installed` ones (default: of
    installed packages).

    A plug-in given more than once runs more than once. Raises PipelineError for a text that does not parse or arguments
    that fit no field, and PluginError for what is no plug-in, cannot be loaded, or has a name already in use.
    """
    installed = collect(entry_points()) if installed is None else installed
    available = dict(installed.available)
    members: list[_Member] = []
    for item in _several(given):
        members += _from_text(item, available, installed.broken) if isinstance(item, str) else [_given(item, available)]
    named = {m.instance.name for m in members}
    members += [
        _Member(_built(identity, PassText(name)), identity)
        for name, identity in installed.available.items()
        if name not in named and not required_fields(identity.cls)
    ]
    warnings = tuple(f"{problem}; it takes no part" for name, problem in installed.broken.items())
    return _guarded(members, warnings)


def as_texts(given: Sequence[Named] | Named | None) -> list[str]:
    """Return what was given to `load_plugins` in the form of `--pass` options."""
    return [_as_text(item) for item in _several(given)]


def _several(given: Sequence[Named] | Named | None) -> Sequence[Named]:
    if given is None:
        return ()
    return given if isinstance(given, list | tuple) else [given]


def _as_text(item: Named) -> str:
    if isinstance(item, str):
        return item
    cls = item if inspect.isclass(item) else type(item)
    return f"{qualified(cls)}{'' if cls is item else arguments_text(item)}"


def _guarded(members: Sequence[_Member], warnings: tuple[str, ...]) -> LoadedPlugins:
    outside = [(m.instance, m.identity) for m in members if m.identity is not None]
    models = [GuardedModel(i, identity) for i, identity in outside if is_model(identity.cls)]
    if len(models) > 1:
        first, second = (model.identity for model in models[:2])
        raise PluginError(f"both {first} and {second} are cost models; leave out one of the two")
    return LoadedPlugins(
        tuple(
            m.instance if m.identity is None else GuardedPass(m.instance, m.identity)
            for m in members
            if m.identity is None or is_pass(m.identity.cls)
        ),
        tuple(GuardedRule(i, identity) for i, identity in outside if is_rule(identity.cls)),
        tuple(GuardedSchedule(i, identity) for i, identity in outside if is_schedule(identity.cls)),
        models[0] if models else None,
        tuple(dict.fromkeys(_record(i, identity) for i, identity in outside)),
        warnings,
    )


def _record(instance: Any, identity: Identity) -> PluginRecord:
    try:
        arguments = arguments_text(instance)
    except TypeError as error:
        raise PluginError(
            f"{identity}: an artifact cannot record its arguments ({error}); fields hold int, float, bool, str, None, "
            "and tuples of these"
        ) from None
    owner = f"{identity.owner}: {qualified(identity.cls)}" if identity.owner == IN_PYTHON else identity.owner
    return PluginRecord(identity.name, owner, content_hash(identity.cls), arguments)


# -- what a compilation is given -------------------------------------------------------------------------------------


def _given(item: object, available: dict[str, Identity]) -> _Member:
    """Return the member for a class, or for an instance of one."""
    cls = item if inspect.isclass(item) else type(item)
    identity = Identity(cls, IN_PYTHON)
    if isinstance(item, bytes | bytearray) or cls.__module__ == "builtins":
        raise PluginError(f"passes: {item!r} is no plug-in; give a text, a class or an instance of one")
    if cls in pass_table().values():
        return _Member(_built(identity, PassText(identity.name)) if cls is item else item, None)
    check_class(cls, identity.owner)
    identity = next((known for known in available.values() if known.cls is cls), identity)
    _claim(available, identity)
    return _Member(_built(identity, PassText(identity.name)) if cls is item else item, identity)


def _from_text(text: str, available: dict[str, Identity], broken: Mapping[str, str]) -> list[_Member]:
    if not text.strip():
        raise PipelineError(f"--pass {text!r}: the name of a pass is missing; give one, or leave the option out")
    return [_member(entry, available, broken, text) for entry in parse_text(text)]


def _member(entry: PassText, available: dict[str, Identity], broken: Mapping[str, str], text: str) -> _Member:
    table = {**pass_table(), **{name: identity.cls for name, identity in available.items()}}
    if ":" in entry.name:
        identity = _from_module(entry.name, text)
        _claim(available, identity)
        identity = available[identity.name]
        return _Member(_built(identity, entry), identity)
    if entry.name in broken and entry.name not in available:
        raise PluginError(broken[entry.name])
    if entry.name not in table:
        known = ", ".join(sorted(table))
        raise PipelineError(f"--pass {text}: there is no pass {entry.name!r}; known: {known}; or write MODULE:CLASS")
    found = available.get(entry.name)
    return _Member(build_from_class(table[entry.name], entry, table) if found is None else _built(found, entry), found)


def _built(identity: Identity, entry: PassText) -> Any:
    """Return an instance with the arguments of `entry`; errors of its class are attributed to it."""
    try:
        return build_from_class(identity.cls, entry, pass_table())
    except PipelineError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"{identity}: no instance can be made: {told(error)}; {identity.remedy}") from error


def _from_module(name: str, text: str) -> Identity:
    cls = _class_named(name, f"--pass {text}")
    check_class(cls, f"--pass {text}")
    return Identity(cls, f"--pass {name}")


def load_policy(text: str) -> tuple[Policy, PluginRecord]:
    """Return the synchronisation policy that `MODULE:CLASS{field=value}` names, and its record. Raises PluginError if
    it is none or cannot be created.
    """
    owner = f"--sync {text}"
    entries = parse_text(text)
    if len(entries) != 1 or ":" not in entries[0].name:
        raise PluginError(f"{owner}: it names no class; write MODULE:CLASS{{field=value}}")
    cls = _class_named(entries[0].name, owner)
    if not (inspect.isclass(cls) and isinstance(getattr(cls, "name", None), str) and is_dataclass(cls)):
        raise PluginError(f"{owner}: it is no dataclass with a `name`; see `tilestitch.passes.sync.policies`")
    identity = Identity(cls, f"--sync {entries[0].name}")
    policy = _built(identity, entries[0])
    if not isinstance(policy, Policy):
        raise PluginError(f"{owner}: it has no method `semaphores`; see `tilestitch.passes.sync.policies`")
    return policy, _record(policy, identity)


def _class_named(name: str, owner: str) -> Any:
    module_name, _, class_name = name.partition(":")
    try:
        module = _imported(module_name)
    except (Exception, SystemExit) as error:
        fault = import_fault(owner, module_name, error)
        hint = " (a module's name, without .py)" if module_name.endswith(".py") else ""
        raise PluginError(
            f"{fault}; give an importable module{hint} and a class in it, as in my_rules:MyRule"
        ) from error
    cls = getattr(module, class_name, None)
    if cls is None:
        classes = [n for n, c in vars(module).items() if inspect.isclass(c) and c.__module__ == module.__name__]
        known = f"it has {', '.join(classes)}" if classes else "it has no classes"
        raise PluginError(f"{owner}: module {module_name} has no attribute {class_name!r}; {known}")
    return cls


def _imported(name: str) -> Any:
    """Return the module with that name, which may be in the working directory."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        here = str(Path.cwd())
        if error.name != name.split(".")[0] or here in sys.path:
            raise
        sys.path.append(here)
        importlib.invalidate_caches()
        return importlib.import_module(name)
