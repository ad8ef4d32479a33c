"""Settings files: which file counts, its limits, and the refusal of mistakes."""

from pathlib import Path

import pytest

from ampbench.core.budget import find_limits
from ampbench.errors import UsageError

FAR, NEAR = "[tool.ampbench.limits]\nkl_mean = 1\n", "[limits]\nkl_mean = 2\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "source" / "deep").mkdir(parents=True)
    return tmp_path


def test_the_nearest_file_up_to_the_root_of_the_repository_counts(repository: Path) -> None:
    (repository / "pyproject.toml").write_text(FAR)
    assert find_limits(repository / "source" / "deep") == (repository / "pyproject.toml", {"kl_mean": 1.0})
    (repository / "source" / "ampbench.toml").write_text(NEAR)
    found = find_limits(repository / "source" / "deep")
    assert found == (repository / "source" / "ampbench.toml", {"kl_mean": 2.0})


def test_files_above_the_repository_are_not_read(repository: Path) -> None:
    (repository / "ampbench.toml").write_text(NEAR)
    (repository / "source" / ".git").write_text("gitdir: elsewhere")
    assert find_limits(repository / "source" / "deep") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("results = 'x'", r"ampbench\.toml: unknown table 'results': known: limits"),
        ("[limits]\nkl_man = 5", r"ampbench\.toml: unknown limit 'kl_man': did you mean kl_mean"),
        ("rounds = = 5", r"ampbench\.toml: not valid TOML: .*line 1"),
        ("rounds = " + "9" * 5000, r"ampbench\.toml: not valid TOML: Exceeds the limit"),
        ("rounds = " + "[" * 20_000, r"ampbench\.toml: its brackets or tables are nested too deep to be read"),
        ("limits = 5", r"ampbench\.toml: limits must be a table"),
    ],
)
def test_a_mistake_is_refused_with_the_file(text: str, message: str, repository: Path) -> None:
    (repository / "ampbench.toml").write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        find_limits(repository)
    assert "\n" not in str(caught.value)
