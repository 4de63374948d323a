"""Exports models with open dimensions, with random weights from a fixed seed.

    python -m benchmarks.open_models [NAME ...] [--exporter script|dynamo ...] [--force]

Nothing is downloaded. The files go to benchmarks/models/open/ and are kept.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys

from benchmarks.open_models.catalogue import MODELS
from benchmarks.open_models.model import EXPORTERS, export


def job(name: str, exporter: str, force: bool) -> None:
    path = export(MODELS[name], name, exporter, force)
    print(f"{path}  {path.stat().st_size / 2**20:.1f} MiB", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.open_models", description="Export open models.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}; all when none is named")
    parser.add_argument("--exporter", nargs="+", choices=[*EXPORTERS, "keras"], help="only with these")
    parser.add_argument("--force", action="store_true", help="export again what is there")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in MODELS]
    if unknown:
        parser.error(f"no model named {', '.join(unknown)}; there are {', '.join(MODELS)}")
    failed = 0
    for name in options.names or MODELS:
        for exporter in MODELS[name].exporters:
            if not options.exporter or exporter in options.exporter:
                process = multiprocessing.get_context("fork").Process(target=job, args=(name, exporter, options.force))
                process.start()
                process.join()
                if process.exitcode:
                    print(f"{name} by {exporter}: no export (the reason is above)", file=sys.stderr)
                    failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
