"""What tests of studies share with those of measuring: a case, a network, a server."""

from collections.abc import Callable

import pytest

from ampbench.records.case import Case
from tests.worker.conftest import channel, classifier, make_case

__all__ = ["channel", "classifier"]


@pytest.fixture
def case() -> Callable[..., Case]:
    return make_case
