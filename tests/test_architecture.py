"""docs/architecture.md draws every part of ampbench/ in the order of the import contracts, which name every module."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BORDER, LAYERS, _, APART = PROJECT["tool"]["importlinter"]["contracts"]
LAYERED = [
    [name.removeprefix("ampbench.") for name in layer.replace(":", "|").replace(" ", "").split("|")]
    for layer in LAYERS["layers"]
]
TORCH = {"cells", "worker", "trace", "live", "explain", "study", "watching", "pytest_plugin", "asv_suite", "workloads"}
"""What may import torch."""


def modules(folder: str = "") -> set[str]:
    """Return the modules and packages in a folder of ampbench/."""
    paths = (ROOT / "ampbench" / folder).iterdir()
    known = (path for path in paths if path.suffix == ".py" or (path / "__init__.py").exists())
    return {f"{folder}.{path.stem}".strip(".") for path in known if not path.name.startswith("_")}


def test_the_house_is_drawn_whole_and_in_the_order_of_its_layers() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = page.split("```")[1].partition("torch:")[0]
    floors = [set(line[:43].split()) for line in picture.splitlines()]
    drawn = {name: floor for floor, names in enumerate(floors) for name in names}
    expected = modules() - {"workloads", "worker", "trace"} | {"workloads.index"}
    assert not expected - drawn.keys(), f"{expected - drawn.keys()}: draw in docs/architecture.md"
    order = [{drawn[name] for name in layer if name in drawn} for layer in LAYERED]
    places = [place for floor in order for place in sorted(floor)]
    assert places == sorted(places), "the picture in docs/architecture.md has another order than pyproject.toml"


def test_every_module_has_its_layer_and_the_torch_free_ones_their_border() -> None:
    studies = {name for name in modules("studies") if not name.endswith("_measure")}
    shared = {f"studies.{name}" for name in ("study", "work", "watch")}
    for contract, wanted in (
        (LAYERS, (modules() | modules("workloads")) - {"workloads"}),
        (BORDER, (modules() | studies) - TORCH - {"studies"}),
        (APART, studies - shared),
    ):
        listed = re.findall(r"ampbench\.([\w.]+)", str(contract))
        assert not wanted - {*listed}, f"{wanted - {*listed}}: add to the contract '{contract['name']}', pyproject.toml"
