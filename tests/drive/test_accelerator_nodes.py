from pathlib import Path

import pytest

from ampbench.drive.servers import may_have_accelerator


@pytest.mark.parametrize(("node", "found"), [("nvidiactl", True), ("dri", True), ("null", False)])
def test_an_accelerator_is_possible_where_its_driver_has_a_node(tmp_path: Path, node: str, found: bool) -> None:
    (tmp_path / node).touch()
    assert may_have_accelerator(tmp_path) is found
