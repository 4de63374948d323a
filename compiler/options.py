"""Validation of the options of `compile_model`: each error names the option, its value, and valid values."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilestitch.runtime.cpu.threads import MAX_THREADS

from .errors import OptionError
from .prepare import Progress
from .specialise import ShapeSet
from .targets import TARGETS

if TYPE_CHECKING:
    from tilestitch.passes.plan import StitchPlan
    from tilestitch.passes.plugins.load import Named
    from tilestitch.passes.sync.policies import Policy

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True)
class Options:
    """The options of `compile_model` besides the model; see its docstring.

    Raises OptionError for a value of the wrong type, and for invalid or conflicting values.
    """

    target: str
    shapes: ShapeSet | Sequence[ShapeSet] | None
    dims: Mapping[str, tuple[int, int]] | None
    favour: Sequence[Mapping[str, int]]
    precision: str
    keep_fp32: Sequence[str]
    winograd: bool
    passes: Sequence[Named] | Named | None
    installed_plugins: bool
    plan: StitchPlan | Sequence[StitchPlan] | AnyPath | None
    planner: str
    cost_model: str | None
    sync: str | Policy
    records: AnyPath | None
    frozen: bool
    plan_budget_s: float | None
    strip_weights: bool
    dump_ir: AnyPath | None
    report: AnyPath | None
    num_threads: int | None
    keep_source: bool
    cache: AnyPath | bool
    nvcc: str | None
    expose: Sequence[str]
    host_steps: bool
    donate: Sequence[str]
    branch_bytes: int | None
    progress: Progress | None

    def __post_init__(self) -> None:
        if not isinstance(self.target, str):
            raise OptionError(f"target is {self.target!r}, no text; {TARGETS}")
        for check, names in _CHECKS:
            for name in names:
                check(name, getattr(self, name))
        _check_precision(self.precision, self.keep_fp32)
        _check_dims(self.dims)
        if isinstance(self.favour, Mapping) or not isinstance(self.favour, Sequence):
            raise OptionError(f"favour is {self.favour!r}; give a list of points such as [{{'batch': 1}}]")
        if self.sync is None:
            raise OptionError("sync is None; give off, auto, model, the name of a policy, or a policy")
        if not isinstance(self.cost_model, str | None):
            raise OptionError(f"cost_model is {self.cost_model!r}; give its name or the path of its file, or None")
        if self.progress is not None and not callable(self.progress):
            raise OptionError(f"progress is {self.progress!r}; give a function of a stage and two numbers, or None")


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise OptionError(f"{name} is {value!r}; give True or False")


def _check_path(name: str, value: Any) -> None:
    if value is not None and not is_path(value):
        raise OptionError(f"{name} is {value!r}; give a path, or None")


def is_path(value: Any) -> bool:
    """Return whether a value can name a file: text or a path, not empty, and without a zero byte."""
    return isinstance(value, str | os.PathLike) and os.fspath(value) not in ("", b"") and "\0" not in str(value)


def _check_folder(name: str, value: Any) -> None:
    _check_path(name, value)
    if value is not None and Path(value).exists() and not Path(value).is_dir():
        raise OptionError(f"{name} is {str(value)!r}, which is a file; give a folder, which need not exist yet")


def _check_names(name: str, value: Any) -> None:
    if isinstance(value, str):
        raise OptionError(f"{name} is the text {value!r}; give a list of names")
    if not isinstance(value, Sequence) or not all(isinstance(each, str) for each in value):
        raise OptionError(f"{name} is {value!r}; give a list of names, which may be empty")


def _check_count(name: str, value: Any, least: int, wanted: str) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        raise OptionError(f"{name} is {value!r}; give {wanted}")


def _check_threads(name: str, value: Any) -> None:
    wanted = f"an integer from 1 to {MAX_THREADS}, or None for all cores"
    _check_count(name, value, 1, wanted)
    if value is not None and value > MAX_THREADS:
        raise OptionError(f"{name} is {value}; give {wanted}")


def _check_bytes(name: str, value: Any) -> None:
    _check_count(name, value, 0, "a number of bytes, 0 or more, or None")


def _check_seconds(name: str, value: Any) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and value >= 0):
        raise OptionError(f"{name} is {value!r}; give seconds, 0 or more")


_CHECKS: tuple[tuple[Callable[[str, Any], None], tuple[str, ...]], ...] = (
    (_check_flag, ("winograd", "installed_plugins", "frozen", "strip_weights", "keep_source", "host_steps")),
    (_check_path, ("records", "report", "nvcc")),
    (_check_folder, ("dump_ir",)),
    (_check_names, ("keep_fp32", "expose", "donate")),
    (_check_threads, ("num_threads",)),
    (_check_bytes, ("branch_bytes",)),
    (_check_seconds, ("plan_budget_s",)),
)


def _check_precision(precision: str, keep_fp32: Sequence[str]) -> None:
    from tilestitch.passes.rewrite.precision import PRECISIONS

    if precision not in PRECISIONS:
        raise OptionError(f"precision {precision!r} is not supported; give one of {', '.join(PRECISIONS)}")
    if keep_fp32 and precision == "fp32":
        raise OptionError("keep_fp32 is for a lower precision; leave it out, or give precision fp16, bf16 or tf32")


def _check_dims(dims: Any) -> None:
    named = isinstance(dims, Mapping) and all(isinstance(name, str) for name in dims)
    if dims is not None and not named:
        raise OptionError(f"dims is {dims!r}; give ranges by the names of dimensions, such as {{'batch': (1, 64)}}")
