"""The thin runtime: reads an artifact, maps its weights and kernels, and runs it. Needs numpy and the standard library only."""

from __future__ import annotations
