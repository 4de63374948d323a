"""`python -m tilestitch.compiler.cli`, for where the console script is not on the path."""

from tilestitch.compiler.cli.main import entry

entry()
