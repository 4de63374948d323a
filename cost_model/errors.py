"""Errors of measured data and of models that are fitted to them."""

from __future__ import annotations


class MeasurementError(ValueError):
    """A file of measurements, of devices or of a fitted model is not what it should be."""

    exit_code = 1
