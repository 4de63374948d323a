"""Errors of tile synchronisation."""

from __future__ import annotations

from tilestitch.passes.errors import PassError


class SyncPolicyError(PassError):
    """Raised for an unknown policy, or one that would wait for too little."""
