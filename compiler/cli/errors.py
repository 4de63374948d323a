"""Errors of the command line itself. Every error of tilestitch has an `exit_code`.

The meaning of the codes is a contract.
"""

OK = 0
USER = 1
UNSUPPORTED = 2
ACCURACY = 3
ENVIRONMENT = 4
INTERRUPTED = 130
TERMINATED = 143


class UsageError(Exception):
    """Invalid request: a wrong option, a missing file."""

    exit_code = USER


class AccuracyError(Exception):
    """Results differ from the reference by more than is allowed."""

    exit_code = ACCURACY


class OutputError(Exception):
    """Standard output cannot be written."""

    exit_code = ENVIRONMENT
