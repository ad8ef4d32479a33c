"""What docs/contributing.md promises: one row in one table, and the new thing is everywhere."""

import dataclasses
from types import MappingProxyType

import pytest
import torch
from jinja2 import ChoiceLoader, DictLoader

import ampbench
from ampbench import convert
from ampbench.base.metrics import COLUMNS, METRICS, Column
from ampbench.base.precisions import AUTOCAST, PRECISIONS, SHORT_DTYPES, default_autocast
from ampbench.cli.main import main
from ampbench.convert import Format
from ampbench.drive.planning import make_plan
from ampbench.explain.dtypes import autocast_to
from ampbench.explain.rules.documented import DEFAULT_DTYPES
from ampbench.judge import frame
from ampbench.measure.machine import Cpu
from ampbench.measure.step import build_step
from ampbench.present.charts import colour_rules
from ampbench.present.page import View
from ampbench.records.case import AUTOCAST_DEVICES, DEVICES
from ampbench.records.run import Selection
from ampbench.report import page, views
from ampbench.report.material import gather
from ampbench.workload import Workload
from tests.scripted_channel import CPU, machine
from tests.stored_runs import make_case, make_divergence, make_round, write_run


@pytest.fixture
def results(tmp_path):
    case = make_case("fp32")
    path = write_run(tmp_path / "results", [case], make_round(case), make_divergence(case, grad_worst_rel_l2=0.25))
    return path.parents[1]


def test_a_precision_that_is_a_row_is_planned_run_printed_and_has_its_colour(tmp_path, monkeypatch, capsys):
    made = dataclasses.replace(PRECISIONS["bf16_autocast"], name="bf16_made", aliases=("made",), colour="#7570B3")
    monkeypatch.setitem(PRECISIONS, made.name, made)
    selection = Selection(workloads=["mlp"], preset="tiny", precisions=["made"], phases=["inference"])
    [case] = [planned.case for planned in make_plan(selection, machine(CPU), pytest.fail)]
    step = build_step(Workload(module=torch.nn.Linear(4, 4), inputs=torch.ones(2, 4)), case, Cpu())
    assert step.run().dtype is torch.bfloat16
    write_run(tmp_path / "results", [case], make_round(case))
    assert main(["show", "latest", "--results", str(tmp_path / "results")]) == 0
    assert "bf16_made" in capsys.readouterr().out
    assert '[data-precision="bf16_made"]' in colour_rules()


def test_of_precisions_with_one_autocast_dtype_the_first_is_the_default():
    dtypes = {SHORT_DTYPES[PRECISIONS[name].autocast]: name for name in reversed(AUTOCAST)}
    assert {dtype: default_autocast(dtype) for dtype in dtypes} == dtypes
    assert default_autocast("fp32") is None


def test_a_stored_number_that_becomes_a_column_is_loaded(results, monkeypatch):
    made = Column(name="grad_worst_rel_l2", label="worst", unit="error", better="lower", summary="Made.")
    monkeypatch.setattr(frame, "COLUMNS", {**COLUMNS, made.name: made})
    monkeypatch.setattr(frame, "METRICS", {**METRICS, made.name: made})
    assert ampbench.load(results)["grad_worst_rel_l2"].tolist() == [0.25]


def test_a_format_that_is_a_row_can_be_converted_to(results, monkeypatch, capsys):
    made = Format(name="made", of_run=lambda selected: f"{len(selected.rows)} case\n")
    monkeypatch.setattr(convert, "FORMATS", MappingProxyType({**convert.FORMATS, made.name: made}))
    assert main(["convert", "latest", "--to", "made", "--results", str(results)]) == 0
    assert capsys.readouterr().out == "1 case\n"


def test_a_view_in_the_list_is_a_section_of_the_page(results, monkeypatch):
    templates = page._templates()
    loader = ChoiceLoader([DictLoader({"made.html": "<p>{{ said }}</p>"}), templates.loader])
    monkeypatch.setattr(templates, "loader", loader)
    made = View(id="made", title="Made", template="made.html", content={"said": "here"})
    monkeypatch.setattr(views, "VIEWS", (views.VIEWS[0], lambda material: made))
    text = page.make_page(gather(["latest"], results))
    assert "<p>here</p>" in text
    assert 'href="#made"' in text


def test_every_device_has_a_documented_default_dtype():
    assert tuple(DEFAULT_DTYPES) == DEVICES


@pytest.mark.parametrize("device", AUTOCAST_DEVICES)
def test_keep_fp32_switches_autocast_off_on_every_device(device):
    with autocast_to(device, torch.bfloat16):
        assert torch.is_autocast_enabled(device)
        with ampbench.keep_fp32():
            assert not torch.is_autocast_enabled(device)
        assert torch.is_autocast_enabled(device)
