"""Tile synchronisation: which tiles depend on which, policies, the proof that nothing races or waits for ever."""
