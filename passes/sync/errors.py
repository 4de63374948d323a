"""Errors of tile synchronisation."""

from __future__ import annotations

from tilestitch.passes.errors import PassError


class SyncPolicyError(PassError):
    """A policy that there is not, or that would wait for too little."""
