"""What tests of studies share with those of measuring: a case, a network."""

from tests.worker.conftest import case, classifier

__all__ = ["case", "classifier"]
