"""Runs a command with the stand-in in place of the driver; see the package."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.runtime.cuda.standin import __doc__ as description
from tests.runtime.cuda.standin.build import GPUS, build, missing


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.runtime.cuda.standin",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gpus", default=GPUS, help="of B200, H200, H100, A100, L40S, with commas (default H200)")
    parser.add_argument("--idle", action="store_true", help="graphs do nothing at all, to measure what is around them")
    parser.add_argument("command", nargs="+", help="what to run, after --")
    options = parser.parse_args(arguments)
    reason = missing()
    if reason is not None:
        parser.error(reason)
    folder = str(build(options.gpus, options.idle).parent)
    known = os.environ.get("LD_LIBRARY_PATH", "")
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (folder, known)))
    own = str(Path(sys.executable).parent)  # `python` is this one
    os.environ["PATH"] = os.pathsep.join((own, os.environ.get("PATH", "")))
    os.execvp(options.command[0], options.command)


if __name__ == "__main__":
    main(sys.argv[1:])
