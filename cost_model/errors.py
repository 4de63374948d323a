"""Errors in measured data and in models fitted to them."""


class MeasurementError(ValueError):
    """Invalid file of measurements, devices or a fitted model."""

    exit_code = 1
