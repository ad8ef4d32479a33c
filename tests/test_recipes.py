"""What docs/contributing.md promises: one row in one table, and the new thing is everywhere."""

import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
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
PACKAGE = ROOT / "ampbench"


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


def test_the_metric_of_the_page_is_none_of_those_that_there_are():
    assert shown("Column").name not in COLUMNS


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


MADE = Path(__file__).parent / "made_studies"
"""Studies that ampbench does not have: a study and an explanation, small but real."""
ROWS = {
    "warmup": """\
    Kind(
        "warmup", "study", "the warm-up of", (Lines("warmup", "ampbench.studies.warmup:WarmUp"),),
        summary="After how many steps the step time settles.",
        resumed=True,
    ),
""",
    "shapes": """\
    Kind(
        "shapes", "explain", "the shapes in", (Lines("shapes", "ampbench.studies.shapes:ShapesPass"),),
        summary="The shape, the dtype and the bytes of what each module gives.",
    ),
""",
}
"""The rows of `records/kinds.py` that register them."""
WORDS = """\
    "warmup-settled": (
        "settled after {steps:counted;step}: all later ones are within {tolerance:share} of the fastest, {fastest:s}"
    ),
    "warmup-unsettled": "not settled after {steps:counted;step}: no end within {tolerance:share} of {fastest:s}",
    "shapes-total": "{modules:counted;module}: {total:B} of outputs, {most:B} of {module} at most",
"""
"""The lines of `show/studies.py` that word their codes."""
BREAKS = "import torch\n\n\ndef make():\n    return torch.nn.Linear(4, 4), torch.ones(2, 5)\n"
"""A workload whose step raises."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package, in which both are registered."""
    found = tmp_path / "ampbench"
    shutil.copytree(PACKAGE, found)  # with what is compiled of it, which takes seconds
    for name in ROWS:
        shutil.copy(MADE / f"{name}.py", found / "studies")
    kinds, words = found / "records" / "kinds.py", found / "show" / "studies.py"
    before, end, after = kinds.read_text().partition(")  # fmt: skip\nKINDS:")
    kinds.write_text(before + "".join(ROWS.values()) + end + after)
    before, begin, after = words.read_text().partition("TEMPLATES: Mapping[str, str] = {\n")
    words.write_text(before + begin + WORDS + after)
    return found


def session(copy: Path, folder: Path, *commands: list[str]) -> list[dict[str, Any]]:
    """What comes of commands given in `folder` to the ampbench that is `copy`."""
    environment = {**os.environ, "PYTHONPATH": str(copy.parent), "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-P", MADE / "session.py", json.dumps(commands)],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def differing(compared: filecmp.dircmp[str], below: str = "") -> Iterator[str]:
    """What two folders do not have in common: files that differ, and what only one has."""
    yield from (f"{below}{name}" for name in (*compared.diff_files, *compared.left_only, *compared.right_only))
    for name, inner in compared.subdirs.items():
        yield from differing(inner, f"{below}{name}/")


def differences(copy: Path) -> set[str]:
    return set(differing(filecmp.dircmp(PACKAGE, copy, ignore=["__pycache__"])))


@pytest.mark.slow
def test_a_study_is_a_file_and_a_row_and_leaves_nothing_when_it_goes(copy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "used"
    folder.mkdir()
    assert differences(copy) == {
        "studies/warmup.py", "studies/shapes.py", "records/kinds.py", "show/studies.py"
    }  # fmt: skip

    (folder / "breaks.py").write_text(BREAKS)
    began, explained = session(
        copy, folder, ["interrupted", "study", "warmup", "mlp", "--preset=tiny", "--precision=fp32,bf16_autocast",
         "--tolerance=0.5", "--steps=3"],
        ["explain", "shapes", "mlp", "breaks.py:make", "--preset", "tiny", "--precision", "bf16_autocast"],
    )  # fmt: skip
    assert began["code"] == 130
    assert began["out"].count("within 50.0% of") == 1
    runs = [path.stem for path in sorted((folder / "results" / "runs").iterdir())]
    study, explanation = runs
    assert f"1 piece left; ampbench study warmup --resume {study} goes on" in began["err"]
    assert explained["code"] == 3
    assert "(network)  Sequential  8×10   bf16   160 B" in explained["out"]
    assert "mat1 and mat2 shapes cannot be multiplied" in explained["out"]

    helped, wrong, *told = session(
        copy, folder, ["study", "--help"], ["study", "warmup", "mlp", "--tolerance", "2"],
        ["study", "warmup", "-v", "--resume", study], ["study", "warmup", "-v", "--resume", study],
        *(["show", study, "-v", "--format", form] for form in ("table", "csv", "json", "markdown")),
        ["show", explanation],
        ["list", "runs"], ["report", *runs, "-o", "page.html"],
    )  # fmt: skip
    assert "warmup         After how many steps the step time settles." in helped["out"]
    assert (wrong["code"], wrong["err"].count("\n")) == (2, 1)
    assert "'--tolerance': 2.0 is not in the range 0<=x<=1" in wrong["err"]
    assert [one["code"] for one in told] == [0] * len(told)
    went_on, complete, table, csv, data, markdown, shown, listed, _ = (one["out"] for one in told)
    assert went_on == complete == table
    assert table.count("The first steps") == 2
    assert f"run {study} is complete: nothing is left to do" in told[1]["err"]
    assert len(csv.splitlines()) == 1 + 2 * 3
    assert [case["warmup"]["tolerance"] for case in json.loads(data)["cases"]] == [0.5, 0.5]
    assert markdown.count("### The first steps") == 2
    assert shown == explained["out"]
    listed = " ".join(listed.split())
    assert "studies warmup of mlp fp32, bf16_autocast" in listed
    assert "explains shapes of mlp, breaks.py:make bf16_autocast" in listed
    page = (folder / "page.html").read_text()
    assert all(title in page for title in ("Warm-up", "Shapes"))

    for name in ROWS:
        (copy / "studies" / f"{name}.py").unlink()
    for edited in ("records/kinds.py", "show/studies.py"):
        shutil.copy(PACKAGE / edited, copy / edited)
    assert differences(copy) == set()
    gone, unreadable = session(copy, folder, ["explain", "shapes", "mlp"], ["show", explanation])
    assert "unknown explain verb 'shapes'" in gone["err"]
    assert (unreadable["code"], unreadable["err"].count("\n")) == (2, 1)
    assert "a newer ampbench" in unreadable["err"]


@pytest.mark.slow
def test_a_study_that_is_a_file_and_a_row_stands_to_the_checks_of_all(copy: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__", MADE.name))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    shared = [
        "tests/studies/test_naming.py", "tests/store/test_lines.py", "tests/test_settings.py",
        "tests/records/test_wire.py",
    ]  # fmt: skip
    imports = "from importlinter.cli import lint_imports_command as run; run()"
    alone = ["-n", "0", "-p", "no:cacheprovider"]
    for command in (["-m", "mypy"], ["-c", imports], ["-m", "pytest", "-q", *alone, *shared]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
