"""The command line: one module for each command.

A command module has SUMMARY, `add_arguments(parser)` and `run(options) -> int` (the exit code). It imports heavy
packages inside its functions, so that `tilestitch --help` starts at once.
"""
