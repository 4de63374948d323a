"""The arguments with which a model was loaded, so that pickle and copy can load it again: threads and a GPU's memory
cannot be copied.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .artifact import Artifact
from .members import MANIFEST

if TYPE_CHECKING:
    from .cuda.partition import Partition
    from .emulator import EmulatorOptions


@dataclass(frozen=True)
class Recipe:
    """The arguments of `load`. `source` and `weights` are paths. `digest`: of the manifest at the time.

    `multiprocessors`: a copy gets as many of its own, also of a model on a partition.
    """

    source: str
    device: str | EmulatorOptions
    num_threads: int | None
    weights: str | None
    verify: bool
    sync: bool
    donate: tuple[str, ...]
    multiprocessors: int | None
    digest: str

    @staticmethod
    def of(
        artifact: Artifact,
        source: Any,
        device: str | EmulatorOptions,
        num_threads: int | None,
        weights: Any,
        verify: bool,
        sync: bool,
        donate: tuple[str, ...],
        multiprocessors: int | Partition | None,
    ) -> Recipe | None:
        """Return the recipe; None for what was not loaded from files."""
        if isinstance(source, bytes | bytearray | memoryview) or isinstance(weights, Mapping):
            return None
        beside = None if weights is None else os.path.abspath(weights)
        place, digest = os.path.abspath(source), manifest_digest(artifact)
        asked = multiprocessors
        count = asked if asked is None or isinstance(asked, int) else asked.multiprocessors
        return Recipe(place, device, num_threads, beside, verify, sync, donate, count, digest)


def manifest_digest(artifact: Artifact) -> str:
    return hashlib.sha256(artifact.member(MANIFEST)).hexdigest()
