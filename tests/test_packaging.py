"""What is built to be installed: a wheel with all that the code reads, an archive with all that its tests read."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive of this tree."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def package_files() -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / "ampbench").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert set(names) == package_files()


def test_type_checkers_are_told_that_the_package_is_typed(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert zipfile.ZipFile(wheel).read("ampbench/py.typed") == b""


def test_the_source_archive_has_what_the_tests_read(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {Path(*Path(name).parts[1:]) for name in packed.getnames()}
    needed = ["conftest.py", "asv.conf.json", "Makefile", "pyproject.toml", "tests/stored_runs.py", "docs/ci/gate.yml"]
    assert {Path(name) for name in needed} <= names
    assert package_files() <= {str(name) for name in names}
    assert any(name.is_relative_to("results/runs") for name in names)
