"""What a pass is, what it is told, and what it gives back.

A pass is a frozen dataclass with a class variable `name` and a method `run(graph, context) -> PassResult`. Its fields
are its command-line arguments, so a pass is written `name{field=value}` (see `pipeline_text`). `run` may change the
graph it is given or return a new one; it keeps inputs and outputs in number, order and type, and every node it makes
names its origins.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

from tilestitch.compiler.ir import Graph

from .errors import PluginError
from .plan.target import TargetInfo


@dataclass(frozen=True)
class PassResult:
    """What `run` returns: the graph, whether anything changed, and notes for people (one line each)."""

    graph: Graph
    modified: bool
    notes: tuple[str, ...] = ()


@runtime_checkable
class Pass(Protocol):
    """Graph to graph. Implementations are frozen dataclasses; see the module's docstring."""

    name: ClassVar[str]

    def run(self, graph: Graph, context: PassContext) -> PassResult:
        """Raises PassError if the pass cannot do its work; never for a graph where there is nothing to do."""
        ...


class Listener(Protocol):
    """Watches passes run: dumps the IR, takes times, verifies. It must not change the graph."""

    def before(self, pass_: Pass, graph: Graph) -> None: ...

    def after(self, pass_: Pass, result: PassResult, seconds: float) -> None: ...


@dataclass
class PassContext:
    """One compilation as the passes see it. The only mutable part is the bisection counter.

    `bisect_limit` (None: no limit) is the number of pass executions that are allowed; later ones are left out, so that
    the first pass that spoils a result is found by halving. `passes_run` counts them.
    """

    target: TargetInfo = field(default_factory=TargetInfo)
    options: Mapping[str, Any] = field(default_factory=dict)
    listeners: Sequence[Listener] = ()
    rules: Sequence[Any] = ()
    """Fusion rules of plug-ins (`fusion.rules.FusionRule`), asked before the built-in ones."""
    plugins: Sequence[Any] = ()
    """What was loaded (`plan.PluginRecord`); recorded in the plan."""
    bisect_limit: int | None = None
    passes_run: int = 0

    def may_run(self) -> bool:
        """Count one pass execution; False once the bisection limit is used up."""
        self.passes_run += 1
        return self.bisect_limit is None or self.passes_run <= self.bisect_limit


def check_is_pass_class(cls: Any, owner: str) -> None:
    """Raise PluginError, naming `owner`, unless `cls` is a frozen dataclass that is a pass or a fusion rule."""
    name = getattr(cls, "name", None)
    methods = [m for m in ("run", "schedule", "propose", "forbid") if callable(getattr(cls, m, None))]
    problem = None
    if not inspect.isclass(cls) or not dataclasses.is_dataclass(cls):
        problem = "is no dataclass"
    elif not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        problem = "is a dataclass that is not frozen"
    elif not isinstance(name, str) or not name:
        problem = "has no class variable `name`"
    elif not methods:
        problem = "has neither `run` (a pass), nor `propose` and `forbid` (a fusion rule), nor `schedule`"
    elif methods in (["propose"], ["forbid"]):
        problem = "needs both `propose` and `forbid` to be a fusion rule"
    if problem:
        raise PluginError(f"{owner}: {cls!r} {problem}; see docs/plugins.md for what a plug-in looks like")


def is_rule_class(cls: Any) -> bool:
    return callable(getattr(cls, "propose", None)) and callable(getattr(cls, "forbid", None))


def is_schedule_class(cls: Any) -> bool:
    return callable(getattr(cls, "schedule", None))


def content_hash(cls: type) -> str:
    """SHA-256 (hex) of the Python sources that define `cls`: its whole top-level package, or its one module.

    Raises PluginError if the sources are not there: then nothing could say later what was run.
    """
    sha = hashlib.sha256()
    for label, path in _sources(cls):
        try:
            sha.update(f"{label}\0".encode() + path.read_bytes() + b"\0")
        except OSError as error:
            raise PluginError(f"cannot read the source of {cls.__module__}.{cls.__qualname__}: {error}") from None
    return sha.hexdigest()


def _sources(cls: type) -> list[tuple[str, Path]]:
    top = sys.modules.get(cls.__module__.split(".")[0])
    roots = [Path(p) for p in getattr(top, "__path__", [])]
    if roots:
        return sorted((p.relative_to(r).as_posix(), p) for r in roots for p in r.rglob("*.py"))
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if not file:
        raise PluginError(f"{cls.__module__}.{cls.__qualname__} has no source file; put the plug-in into a module")
    return [(Path(file).name, Path(file))]


def uid(pass_: Any) -> str:
    """SHA-256 (hex) of what a pass or rule does: its code and its arguments."""
    arguments = {f.name: getattr(pass_, f.name) for f in dataclasses.fields(pass_)}
    text = f"{pass_.name}\0{sorted(arguments.items())!r}\0{content_hash(type(pass_))}"
    return hashlib.sha256(text.encode()).hexdigest()
