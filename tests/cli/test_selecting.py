import pytest

from ampbench.cli.selecting import parse_setting, parse_sweep
from ampbench.errors import UsageError


def test_settings_and_sweeps_are_read_as_numbers_where_they_are() -> None:
    assert parse_setting("--set", "mlp.width=8") == ("mlp.width", 8)
    assert parse_setting("--set", "rate=1e-3") == ("rate", 1e-3)
    assert parse_setting("--set", "bias=True") == ("bias", True)
    assert parse_setting("--set", "kind=a=b") == ("kind", "a=b")
    assert parse_sweep("batch_size=1,2") == ("batch_size", [1, 2])
    with pytest.raises(UsageError):
        parse_setting("--set", "=3")
