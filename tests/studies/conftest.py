"""What tests of studies share with those of measuring: a case, a network, a server."""

from tests.worker.conftest import case, channel, classifier

__all__ = ["case", "channel", "classifier"]
