"""Error messages for failing plug-ins: name, class, line, the violated rule, and the nodes."""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, TracebackType

from tilestitch.compiler.ir import Node
from tilestitch.passes.errors import PluginError, PluginFault

from .sources import belongs_to, qualified

NODES_SHOWN = 4
PROMISES = {
    "run": "`run(graph, context)` returns a PassResult and keeps inputs and outputs in number, order and type",
    "propose": "`propose(state)` yields Fuse objects and changes nothing itself",
    "forbid": "`forbid(state, nodes)` returns a WhyNot or None, whose numbers are finite and of Python's own types",
    "combine": "`combine(kernels)` yields Combine objects and changes nothing itself",
    "schedule": "`schedule(graph, group, target)` returns None, or kernels that write every output of the group",
    "latency_us": "`latency_us(kernel, device)` returns microseconds, finite and not negative",
    "predict": "`predict(batch, device)` returns a Prediction for each kernel: microseconds, finite and not negative, "
    "low_us <= latency_us <= high_us",
}


@dataclass(frozen=True)
class Identity:
    """The supplier of a plug-in. `owner`: `distribution version`, or how it was given; `installed`: by an entry
    point.
    """

    cls: type
    owner: str
    installed: bool = False

    @property
    def name(self) -> str:
        return str(getattr(self.cls, "name", self.cls.__name__))

    def __str__(self) -> str:
        return f"plug-in {self.name} ({qualified(self.cls)}, {self.owner})"

    @property
    def remedy(self) -> str:
        leave_out = "compile with --no-plugins" if self.installed else "compile without it"
        return f"repair the plug-in, or {leave_out}"

    def fault(self, method: str, problem: str, nodes: Iterable[Node] = (), where: str = "") -> PluginFault:
        """Return the error stating that `method` broke its contract."""
        lines = [f"{self}: {problem}", f"  at {where or self._definition(method)}", *_nodes_line(nodes)]
        lines += [f"  the rule: {PROMISES[method]}", f"{self.remedy}; --verbose shows the plug-in's own traceback"]
        return PluginFault("\n".join(lines))

    @contextmanager
    def blamed(self, method: str, nodes: Sequence[Node] = ()) -> Iterator[None]:
        """Turn what `method` raises inside the context into a PluginFault that locates it; `nodes` are those that it
        was given.
        """
        try:
            yield
        except PluginFault:
            raise
        except (Exception, SystemExit) as error:
            own = self._own_part(error)
            seen = [*(node for entry in own for node in _nodes_in(entry.tb_frame)), *nodes]
            where = _place(own[0]) if own else ""
            fault = self.fault(method, f"{method} raised {type(error).__name__}: {error}", seen, where)
            raise fault from error

    def _own_part(self, error: BaseException) -> list[TracebackType]:
        """Return the plug-in's own frames, innermost first; the error's traceback is trimmed to begin at the
        outermost.
        """
        own = [t for t in _entries(error.__traceback__) if belongs_to(self.cls, _module(t.tb_frame))]
        if own:
            error.__traceback__ = own[0]
        return own[::-1]

    def _definition(self, method: str) -> str:
        code = getattr(getattr(self.cls, method, None), "__code__", None)
        if code is not None:
            return f"{code.co_filename}:{code.co_firstlineno}"
        try:
            return str(inspect.getsourcefile(self.cls))
        except (OSError, TypeError):  # a class without a file
            return qualified(self.cls)


def import_fault(owner: str, target: str, error: BaseException) -> PluginError:
    """Return the error for a plug-in's module that cannot be imported."""
    return PluginError(f"{owner}: {target} cannot be loaded: {told(error)}")


def told(error: BaseException) -> str:
    """Return an error as one line: its type, its message, and the line that raised it."""
    where = [t for t in _entries(error.__traceback__) if not _imports(t.tb_frame)]
    place = f" at {_place(where[-1])}" if where else ""
    if isinstance(error, SyntaxError):
        place = f" at {error.filename}:{error.lineno}"
    return f"{type(error).__name__}: {error}{place}"


def _imports(frame: FrameType) -> bool:
    """Return whether a frame belongs to the import of a plug-in, and so does not locate a fault."""
    module = _module(frame)
    return module.startswith(("importlib", "_frozen_importlib", "tilestitch.passes.plugins."))


def _place(entry: TracebackType) -> str:
    return f"{entry.tb_frame.f_code.co_filename}:{entry.tb_lineno}"


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _nodes_in(frame: FrameType) -> list[Node]:
    return [value for value in frame.f_locals.values() if isinstance(value, Node)]


def _nodes_line(nodes: Iterable[Node]) -> list[str]:
    shown = [f"{n.name} ({', '.join(n.origins)})" if n.origins else n.name for n in dict.fromkeys(nodes)]
    if not shown:
        return []
    more = f" and {len(shown) - NODES_SHOWN} more" if len(shown) > NODES_SHOWN else ""
    return [f"  nodes: {', '.join(shown[:NODES_SHOWN])}{more}"]
