"""How long the suite measures a cell, so that all of it ends within two minutes on two cores (docs/pytest.md)."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
DEFAULTS = {"max_time": 0.5, "min_rounds": 3}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give the suite's tests the settings that the command line does not name."""
    typed = [argument.partition("=")[0] for argument in config.invocation_params.args]
    settings = {name: value for name, value in DEFAULTS.items() if f"--benchmark-{name.replace('_', '-')}" not in typed}
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.benchmark(**settings))
