"""The requirements for a plug-in class."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from tilestitch.passes.contract import PLACES
from tilestitch.passes.errors import PluginError

from .bases import API_VERSION
from .sources import qualified

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
