"""Errors of forecasts."""

from __future__ import annotations


class ForecastError(Exception):
    """No forecast is possible: libraries have no measured kernels for an operator, or sizes are open."""

    exit_code = 2
