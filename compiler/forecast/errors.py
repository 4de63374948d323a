"""Errors of forecasts."""

from __future__ import annotations


class ForecastError(Exception):
    """What is asked cannot be forecast: libraries have no measured kernels for it, or its sizes are open."""

    exit_code = 2
