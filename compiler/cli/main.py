"""Entry point of the command `tilestitch`."""

from __future__ import annotations

import argparse
import contextlib
import gc
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
from tilestitch.compiler.cli import bench, check, compile, doctor, errors, example, explain, plan, predict, run

COMMANDS: dict[str, ModuleType] = {
    "compile": compile,
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

# Packages by the extra that brings them; the module's name is what an ImportError tells.
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
        """Wrong usage is exit code 1 here; argparse's own is 2, which means an unsupported model."""
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
    """Runs one command and returns its exit code. Never raises for what the user did wrong."""
    options = build_parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files need be no Unicode text
    try:
        with _termination_raises(), _warnings_for_people(), _rare_collections():
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
        # The reader of our output has had enough; keep Python from complaining about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return errors.OK
    except Exception as error:  # noqa: BLE001 - the last resort: one clear block instead of a traceback
        if options.verbose:
            _print_traceback(error)
        return _report(error, options.verbose)


class _Terminated(BaseException):
    """SIGTERM came: everything is cleaned up on the way out, as after Ctrl-C."""


@contextlib.contextmanager
def _termination_raises() -> Iterator[None]:
    """While the block runs, SIGTERM raises `_Terminated` in it, unless something else was to become of the signal."""
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
    """Where an error came from: of a plug-in's own error, the part in the plug-in."""
    from tilestitch.passes.errors import PluginFault

    own = error.__cause__ if isinstance(error, PluginFault) else None
    traceback.print_exception(own or error)


@contextlib.contextmanager
def _warnings_for_people() -> Iterator[None]:
    """While the block runs, what is said of plug-ins, the cache and models is one line, without the place in our
    source.
    """
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            if category.__name__ not in ("PluginWarning", "CacheWarning", "DeclarationWarning"):
                usual(message, category, *rest)
                return
            print(f"warning: {message}", file=sys.stderr)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """While the block runs, Python looks for garbage in cycles less often: a compilation makes millions of objects that
    it needs, and to look through these again and again takes a quarter of planning.
    """
    usual = gc.get_threshold()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


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
    """A path that is wrong is the user's; a disk that is full or a device that fails is the machine's."""
    wrong = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)
    return errors.USER if isinstance(error, wrong) else errors.ENVIRONMENT


def entry() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
