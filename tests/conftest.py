"""Settings of all tests: how many examples property tests draw.

`pytest --hypothesis-profile=nightly` draws many more wherever a test does not say how many.
"""

from hypothesis import HealthCheck, settings

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("default", max_examples=25, **_COMMON)
settings.register_profile("nightly", max_examples=2000, **_COMMON)
settings.load_profile("default")
