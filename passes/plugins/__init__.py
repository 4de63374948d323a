"""Plug-ins: what they may be, how they are found, and what keeps their faults apart from tilestitch's own.

Authors of plug-ins import `tilestitch.passes.api`, which has all names that are theirs to use.
"""
