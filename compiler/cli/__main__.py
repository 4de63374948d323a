"""`python -m tilestitch.compiler.cli`, for when the console script is not on the path."""

from tilestitch.compiler.cli.main import entry

entry()
