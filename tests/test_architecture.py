"""docs/architecture.md draws every part of ampbench/ in the order of the import contracts, which name every module."""

import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BORDER, LAYERS, _, APART = PROJECT["tool"]["importlinter"]["contracts"]
LAYERED = [
    [name.removeprefix("ampbench.") for name in layer.replace(":", "|").replace(" ", "").split("|")]
    for layer in LAYERS["layers"]
]
IN_PROCESS = {"cells", "worker", "trace", "live", "explain", "study", "watching", "pytest_plugin", "asv_suite"}
"""Modules that may import torch."""


def modules(folder: str = "") -> set[str]:
    """Return the modules and packages in a folder of ampbench/."""
    paths = (ROOT / "ampbench" / folder).iterdir()
    known = (path for path in paths if path.suffix == ".py" or (path / "__init__.py").exists())
    return {f"{folder}.{path.stem}".strip(".") for path in known if not path.name.startswith("_")}


def lacking(names: Iterable[str], where: str) -> str:
    return f"{', '.join(sorted(names))}: add to {where}"


def test_the_house_is_drawn_whole_and_in_the_order_of_its_layers() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = page.split("```")[1].partition("torch:")[0]
    floors = [set(line[:43].split()) for line in picture.splitlines()]
    drawn = {name: floor for floor, names in enumerate(floors) for name in names}
    expected = modules() - {"workloads", "worker", "trace"} | {"workloads.index"}
    assert not expected - drawn.keys(), lacking(expected - drawn.keys(), "the picture in docs/architecture.md")
    order = [{drawn[name] for name in layer if name in drawn} for layer in LAYERED]
    places = [place for floor in order for place in sorted(floor)]
    assert places == sorted(places), "the picture in docs/architecture.md has another order than pyproject.toml"


def test_every_module_has_its_layer_and_the_torch_free_ones_their_border() -> None:
    contracts = "the contract '{}' in pyproject.toml"
    layered = {name for layer in LAYERED for name in layer}
    unplaced = (modules() | modules("workloads")) - layered - {"workloads"}
    assert not unplaced, lacking(unplaced, contracts.format(LAYERS["name"]))
    bordered = {name.removeprefix("ampbench.") for name in BORDER["source_modules"]}
    studies = {name for name in modules("studies") if not name.endswith("_measure")}
    open_to_torch = (modules() | studies) - IN_PROCESS - {"workloads", "studies"} - bordered
    assert not open_to_torch, lacking(open_to_torch, contracts.format(BORDER["name"]))
    told = {f"studies.{name}" for name in ("study", "work", "watch")}
    unlike = studies - told - {name.removeprefix("ampbench.") for name in APART["modules"]}
    assert not unlike, lacking(unlike, contracts.format(APART["name"]))
