"""How hard the readers of what others wrote are shaken: a little in every run, for minutes with `make fuzz`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_SLOW_IS_FINE = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.large_base_example,
]

# The short form draws the same examples every time, so that it fails where something changed and nowhere else.
settings.register_profile(
    "short", max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=_SLOW_IS_FINE
)
settings.register_profile("long", max_examples=1500, deadline=None, suppress_health_check=_SLOW_IS_FINE)

fuzz = settings.get_profile(os.environ.get("SPECPROF_FUZZ", "short"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Hypothesis warns of an example that is long to print. Here long ones are meant, and a warning is an error."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:Generating overly large repr"))
