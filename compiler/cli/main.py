"""Entry point of the command `tilestitch`."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any, NoReturn

from tilestitch import __version__
from tilestitch.compiler.cli import bench, check, compile, doctor, errors, example, explain, plan, predict, run, tune
from tilestitch.compiler.collection import rare_collections

COMMANDS: dict[str, ModuleType] = {
    "compile": compile,
    "tune": tune,
    "run": run,
    "check": check,
    "bench": bench,
    "explain": explain,
    "predict": predict,
    "plan": plan,
    "doctor": doctor,
    "example": example,
}

EPILOG = """exit codes: 0 ok, 1 wrong usage or input, 2 unsupported model, 3 accuracy check failed, 4 something is
missing on this machine (tilestitch doctor says what), 130 interrupted, 143 terminated"""

# Packages by the extra that installs them; the key is the module name in an ImportError.
EXTRAS = {
    "tvm": "compiler",
    "tvm_ffi": "compiler",
    "onnx": "compiler",
    "ml_dtypes": "compiler",
    "onnxruntime": "check",
    "openvino": "bench",
    "torch": "bench",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Exit with code 1 for wrong usage; argparse's own is 2, which means an unsupported model."""
        print(f"{self.prog}: error: {message}\nTry '{self.prog} --help'.", file=sys.stderr)
        raise SystemExit(errors.USER)


def build_parser() -> argparse.ArgumentParser:
    common = _Parser(add_help=False)
    common.add_argument("--verbose", action="store_true", help="show where an error came from")
    parser = _Parser(
        prog="tilestitch",
        description="Compiles ONNX models ahead of time and runs them.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tilestitch {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name, module in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=module.__doc__,
            parents=[common],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code. Never raises for errors of the user."""
    options = build_parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need not be valid Unicode
    try:
        with _termination_raises(), _warnings_for_people(), rare_collections():
            code: int = COMMANDS[options.command].run(options)
            sys.stdout.flush()
            return code
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return errors.INTERRUPTED
    except _Terminated:
        print("terminated", file=sys.stderr)
        return errors.TERMINATED
    except BrokenPipeError:
        # The reader of our output has closed it; keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return errors.OK
    except Exception as error:  # noqa: BLE001 - the last resort: one clear block instead of a traceback
        if options.verbose:
            _print_traceback(error)
        return _report(error, options.verbose)


class _Terminated(BaseException):
    """SIGTERM was received: everything is cleaned up on the way out, as after Ctrl-C."""


@contextlib.contextmanager
def _termination_raises() -> Iterator[None]:
    """Raise `_Terminated` on SIGTERM within the block, unless the signal has another handler."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not interrupt the clean-up
        raise _Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _print_traceback(error: Exception) -> None:
    """Print the traceback of an error; for a plug-in's own error, the part in the plug-in."""
    from tilestitch.passes.errors import PluginFault

    own = error.__cause__ if isinstance(error, PluginFault) else None
    traceback.print_exception(own or error)


_OURS = frozenset({"PluginWarning", "CacheWarning", "DeclarationWarning", "PartitionWarning"})
"""Classes of warnings by name: of plug-ins, the cache, models and GPUs."""


@contextlib.contextmanager
def _warnings_for_people() -> Iterator[None]:
    """Print our own warnings in one line within the block, without the place in our source."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            if category.__name__ not in _OURS:
                usual(message, category, *rest)
                return
            print(f"warning: {message}", file=sys.stderr)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _report(error: Exception, verbose: bool) -> int:
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        text = str(error)
    elif isinstance(error, ImportError) and (error.name or "").split(".")[0] in EXTRAS:
        package = (error.name or "").split(".")[0]
        text = f"the package {package} is not installed; pip install 'tilestitch[{EXTRAS[package]}]'"
        code = errors.ENVIRONMENT
    elif isinstance(error, OSError) and error.filename is not None:
        text, code = f"{error.filename}: {error.strerror}", _os_code(error)
    elif isinstance(error, (MemoryError, OSError)):
        text, code = str(error) or "out of memory", errors.ENVIRONMENT
    else:
        text = f"internal error: {type(error).__name__}: {error}"
        text += "" if verbose else "\nThis is a fault of tilestitch; --verbose shows where it happened."
        code = errors.USER
    print(f"error: {text}", file=sys.stderr)
    return code


def _os_code(error: OSError) -> int:
    """Return the exit code: a wrong path is the user's error; a full disk or a failing device is the machine's."""
    wrong = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)
    return errors.USER if isinstance(error, wrong) else errors.ENVIRONMENT


def entry() -> None:
    """Run as the console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
