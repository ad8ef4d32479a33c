"""What docs/contributing.md promises: one row in one table, and the new thing is everywhere."""

import re
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

import ampbench
from ampbench import convert
from ampbench.cli.main import main
from ampbench.core.metrics import COLUMNS, Column
from ampbench.core.precisions import (
    AUTOCAST,
    BASELINE,
    BY_DEVICE,
    PRECISIONS,
    SHORT_DTYPES,
    default_autocast,
    find_precision,
)
from ampbench.drive.planning import make_plan
from ampbench.judge import frame
from ampbench.records.case import AUTOCAST_DEVICES, DEVICES
from ampbench.records.run import Selection
from ampbench.report import page
from ampbench.report.material import gather
from ampbench.report.views import Part, View
from ampbench.trace.dtypes import autocast_to
from ampbench.worker.machine import Cpu
from ampbench.worker.step import build_step
from ampbench.workload import Workload
from tests.scripted_channel import CPU, machine
from tests.stored_runs import make_case, make_divergence, make_round, write_run

ROOT = Path(__file__).parents[1]


@pytest.fixture
def results(tmp_path):
    case = make_case("fp32")
    path = write_run(tmp_path / "results", [case], make_round(case), make_divergence(case, grad_noise=0.25))
    return path.parents[1]


def shown(name: str) -> Any:
    """Return what the page's example of a `name` makes."""
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    (code,) = re.findall(rf"^ *(from \S+ import {name}\b.*?)^ *```$", page, re.MULTILINE | re.DOTALL)
    imports, _, made = code.partition("\n\n")
    names: dict[str, Any] = {}
    exec(imports, names)
    return eval(made.strip(), names)


def test_a_precision_that_is_a_row_is_planned_run_and_printed(tmp_path, monkeypatch, capsys):
    made = shown("Precision")
    monkeypatch.setitem(PRECISIONS, made.name, made)
    selection = Selection(workloads=["mlp"], preset="tiny", precisions=[made.name], phases=["inference"])
    [case] = [planned.case for planned in make_plan(selection, machine(CPU), pytest.fail)]
    step = build_step(Workload(module=torch.nn.Linear(4, 4), inputs=torch.ones(2, 4)), case, Cpu())
    assert step.run().dtype is torch.float16
    write_run(tmp_path / "results", [case], make_round(case))
    assert main(["show", "latest", "--results", str(tmp_path / "results")]) == 0
    assert made.name in capsys.readouterr().out


def test_of_precisions_with_one_autocast_dtype_the_first_is_the_default():
    dtypes = {SHORT_DTYPES[PRECISIONS[name].autocast]: name for name in reversed(AUTOCAST)}
    assert {dtype: default_autocast(dtype) for dtype in dtypes} == dtypes
    assert default_autocast("fp32") is None


def test_a_stored_number_that_becomes_a_column_is_loaded(results, monkeypatch):
    made = Column("grad_noise", "noise", "error", "lower", "divergence.gradient.noise")
    monkeypatch.setattr(frame, "COLUMNS", {**COLUMNS, made.name: made})
    assert ampbench.load(results)["grad_noise"].tolist() == [0.25]


def test_a_format_that_is_a_row_can_be_converted_to(results, monkeypatch, capsys):
    made = {"made": lambda _, rows: f"{len(rows)} case\n"}
    monkeypatch.setattr(convert, "FORMATS", MappingProxyType({**convert.FORMATS, **made}))
    assert main(["convert", "latest", "--to", "made", "--results", str(results)]) == 0
    assert capsys.readouterr().out == "1 case\n"


def test_a_view_in_the_list_is_a_section_of_the_page(results, monkeypatch):
    made = View(id="made", title="Made", parts=[Part(id="made", title="", said=["here"])])
    monkeypatch.setattr(page, "VIEWS", (page.VIEWS[0], lambda material: made))
    text = page.make_page(gather(["latest"], results))
    assert "<p>here</p>" in text
    assert 'href="#made"' in text


def test_every_device_has_the_precisions_that_go_by_its_default_dtype():
    assert {named: tuple(known) for named, known in BY_DEVICE.items()} == dict.fromkeys(BY_DEVICE, DEVICES)
    for device in DEVICES:
        dtype = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
        assert find_precision("amp", device).autocast == dtype
        assert device in PRECISIONS[BASELINE].default_on


@pytest.mark.parametrize("device", AUTOCAST_DEVICES)
def test_keep_fp32_switches_autocast_off_on_every_device(device):
    with autocast_to(device, torch.bfloat16):
        assert torch.is_autocast_enabled(device)
        with ampbench.keep_fp32():
            assert not torch.is_autocast_enabled(device)
        assert torch.is_autocast_enabled(device)
