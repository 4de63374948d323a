"""Plug-ins: their kinds, how they are found, and how their faults are kept apart from tilestitch's own.

Authors of plug-ins import `tilestitch.passes.api`, which has all public names.
"""
