"""Tile synchronisation: dependences between tiles, policies, and the proof of freedom from races and deadlocks."""
