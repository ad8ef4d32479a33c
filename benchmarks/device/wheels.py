"""What ampbench needs beside torch, as wheels in a folder, for a machine from which nothing can be reached.

`python -m benchmarks.device.wheels` (`make device-wheels`) fills `.whl/` for Python 3.12 on Linux x86-64. What a Python
has is used as it is; of what it lacks, the wheels are unpacked beside the source tree, which needs no pip.
"""

import contextlib
import importlib.metadata
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".whl"
MOST_BYTES = 60 << 20
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")

EXPECTED = ("numpy", "pandas", "scipy")
"""What a machine with torch for work of this kind has; together they would be as large as all that may travel."""
FOR_TESTS = ("pytest", "pytest-benchmark", "hypothesis", "nvidia-ml-py")
"""What tests/device and their conftest need, and what reads a card's clocks and power."""


def name_of(requirement: str) -> str:
    """Return the name of a requirement as registries spell it: "vl-convert-python" of "vl_convert.python>=1.9"."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement.strip())
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def wanted(more: Sequence[str] = ()) -> list[str]:
    """Return the requirements of ampbench's own pyproject.toml that travel, with those of tests and `more`.

    They are without what is `EXPECTED`, unless it is among `more`; what they need in turn, pip finds.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["report"], *FOR_TESTS, *more]
    found: dict[str, str] = {}
    for requirement in asked:
        if name_of(requirement) not in EXPECTED or requirement in more:
            found.setdefault(name_of(requirement), requirement)
    return list(found.values())


def fill(folder: Path = FOLDER, more: Sequence[str] = ()) -> int:
    """Download the wheels into `folder`, which is made anew, and return their bytes; `SystemExit` where too many."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--python-version",
         PYTHON, "--implementation", "cp", *platforms, "--dest", str(folder), *wanted(more)],
        check=True,
    )  # fmt: skip
    if unmet := needs(folder):
        raise SystemExit(f"{folder}: not there, and needed: {'; '.join(unmet)} (give their names, too)")
    size = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    if size > MOST_BYTES:
        raise SystemExit(f"{folder}: {size / 2**20:.1f} MiB of wheels, and {MOST_BYTES >> 20} are to travel")
    return size


def needs(folder: Path) -> list[str]:
    """Return what the wheels in a folder need and neither they nor `EXPECTED` have: "mdurl>=0.1 of markdown-it-py"."""
    from packaging.markers import default_environment
    from packaging.requirements import Requirement

    there = {name_of(wheel.name.split("-")[0]) for wheel in folder.glob("*.whl")} | {*EXPECTED}
    fits: dict[str, Any] = {**default_environment(), "python_version": PYTHON, "python_full_version": f"{PYTHON}.0"}
    found = []
    for wheel in sorted(folder.glob("*.whl")):
        for line in _metadata(wheel).get_all("Requires-Dist") or ():
            needed = Requirement(line)
            wanted_here = needed.marker is None or needed.marker.evaluate({**fits, "extra": ""})
            if wanted_here and name_of(needed.name) not in there:
                found.append(f"{needed.name} of {wheel.name.split('-')[0]}")
    return found


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as held:
        name = next(name for name in held.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(held.read(name))


def lacking(wheels: Iterable[Path]) -> list[Path]:
    """Return the wheels of what this Python does not have, in any version, and can use."""
    return [wheel for wheel in wheels if not _installed(name_of(wheel.name.split("-")[0])) and _fits(wheel)]


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _fits(wheel: Path) -> bool:
    """Return whether a wheel is for this Python: pure, of its version, or of the stable ABI."""
    tag = wheel.stem.split("-")[-3]
    here = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return here in tag.split(".") or "py3" in tag or (tag.startswith("cp3") and "-abi3-" in wheel.stem)


@contextlib.contextmanager
def unpacked(folder: Path) -> Iterator[list[Path]]:
    """Within, what this Python lacks of the wheels in `folder` is unpacked in the folder yielded, if there is any."""
    found = lacking(sorted(folder.glob("*.whl")))
    if not found:
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="ampbench-wheels-") as made:
        for wheel in found:
            with zipfile.ZipFile(wheel) as held:
                held.extractall(made)
        yield [Path(made)]


if __name__ == "__main__":
    print(f"{FOLDER}: {fill(more=sys.argv[1:]) / 2**20:.1f} MiB of wheels")
