"""What is built to be installed: a wheel with all that the code reads, an archive with all that its tests read."""

import re
import subprocess
import symtable
import sys
import tarfile
import zipfile
from collections.abc import Iterator
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


def files(folder: str) -> set[str]:
    paths = (ROOT / folder).rglob("*")
    return {str(path.relative_to(ROOT)) for path in paths if path.is_file() and "__pycache__" not in path.parts}


def test_the_wheel_has_the_package_its_pages_and_its_examples(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert set(names) == files("ampbench") | {f"ampbench/{name}" for name in files("docs") | files("examples")}


def test_the_readme_of_a_package_index_has_no_relative_link(built: Path) -> None:
    wheel = zipfile.ZipFile(next(built.glob("*.whl")))
    metadata = min(wheel.namelist(), key=lambda name: not name.endswith("/METADATA"))
    links = re.findall(r"\]\(([^)]+)\)", wheel.read(metadata).decode())
    assert "https://example.org/ampbench/blob/main/docs/method.md" in links
    assert all(link.startswith("https://") for link in links)


def test_the_source_archive_has_what_the_tests_read(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {Path(*Path(name).parts[1:]) for name in packed.getnames()}
    needed = ["conftest.py", "asv.conf.json", "Makefile", "pyproject.toml", "tests/stored_runs.py", "docs/ci/gate.yml"]
    assert {Path(name) for name in needed} <= names
    assert files("ampbench") <= {str(name) for name in names}
    assert any(name.is_relative_to("results/runs") for name in names)


COMPREHENSIONS = {"listcomp", "setcomp", "dictcomp"}


def clashes(scope: symtable.SymbolTable) -> Iterator[tuple[str, int, set[str]]]:
    """Yield functions in which one comprehension binds a name that another one takes from the module."""
    inner = [child for child in scope.get_children() if child.get_name() in COMPREHENSIONS]
    bound = {one.get_name() for child in inner for one in child.get_symbols() if one.is_local()}
    found = {one.get_name() for child in inner for one in child.get_symbols() if one.is_global()}
    if scope.get_type() == "function" and bound & found:
        yield scope.get_name(), scope.get_lineno(), bound & found
    for child in scope.get_children():
        yield from clashes(child)


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="its symbol tables are what is wrong there")
def test_no_comprehension_binds_a_name_that_another_in_its_function_has_of_the_module() -> None:
    """Python 3.12.1 takes the second name for the first and raises UnboundLocalError; 3.11 and 3.13 do not."""
    made = symtable.symtable("def f(x):\n  y = [one for one in x]\n  return [one(z) for z in x]", "made", "exec")
    assert list(clashes(made)) == [("f", 1, {"one"})]
    files = [path for part in ("ampbench", "benchmarks") for path in (ROOT / part).rglob("*.py")]
    assert files
    told = [
        f"{path.relative_to(ROOT)}:{line} {name}: {', '.join(names)}"
        for path in files
        for name, line, names in clashes(symtable.symtable(path.read_text(), str(path), "exec"))
    ]
    assert told == []


WITHOUT_THE_DEV_GROUP = """
import sys
from functools import partial
from importlib.machinery import PathFinder

def find_spec(find, name, *given):
    return None if name.partition(".")[0] in sys.argv[1].split() else find(name, *given)

PathFinder.find_spec = partial(find_spec, PathFinder.find_spec)
import pytest
sys.exit(pytest.main(["-p", "no:hypothesispytest", "-p", "no:cacheprovider", "--collect-only", "-rs", *sys.argv[2:]]))
"""


def test_tests_that_need_a_library_of_the_dev_group_are_skipped_by_its_name() -> None:
    missing = "hypothesis bs4 html5lib playwright"
    files = ["tests/core/test_units.py", "tests/report/test_page.py", "tests/core/test_metrics.py"]
    command = [sys.executable, "-c", WITHOUT_THE_DEV_GROUP, missing, *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "needs hypothesis: pip install --group dev" in done.stdout
    assert "test_labels_are_short_and_distinct" in done.stdout
