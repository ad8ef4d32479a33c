import pytest
import torch

from ampbench import cells
from ampbench.drive.servers import ask_environment
from ampbench.errors import NothingToRunError, UsageError
from ampbench.records.run import Selection
from ampbench.records.wire import Reply, Request
from ampbench.worker.environment import read_environment
from ampbench.worker.worker import Worker

TOO_OLD = "torch 2.10.1\\+cu128 is too old: ampbench needs 2.11 or newer"


class Here:
    """A channel to a worker in this process."""

    def serve(self, request: Request) -> Reply:
        return Worker().serve(request)

    def close(self) -> None:
        pass


@pytest.fixture
def old_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.10.1+cu128")


@pytest.mark.usefixtures("old_torch")
def test_a_torch_that_is_too_old_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(NothingToRunError, match=TOO_OLD):
        ask_environment(Here())
    with pytest.raises(UsageError, match=TOO_OLD):
        cells.plan_cells(Selection(workloads=["mlp"]))


@pytest.mark.parametrize("version", ["2.11.0", "2.11.0a0+git1234567", "2.16.0.dev20261101"])
def test_releases_and_what_leads_to_them_are_read(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert read_environment().torch_version == version
