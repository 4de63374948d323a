"""The fusion rules of the built-in planners."""
