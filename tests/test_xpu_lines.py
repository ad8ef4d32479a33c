"""Every line within a function of ampbench that is special to XPU, and a test that reaches each without a card."""

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec import structs

import ampbench
from ampbench.cli import doctor
from ampbench.core.precisions import PRECISIONS
from ampbench.trace import rules as documented
from ampbench.worker import environment, machine
from ampbench.worker.machine import Accelerator, Cpu, fp64_device, precision_flags
from tests.stored_runs import make_header

PACKAGE = Path(ampbench.__file__).parent

REACHED = {
    "cli/doctor.py": {"test_the_version_of_xpu_is_in_what_doctor_and_environment_say"},
    "trace/rules.py": {"test_the_older_reference_is_about_xpu_alone"},
    "worker/environment.py": {"test_the_version_of_xpu_is_in_what_doctor_and_environment_say"},
    "worker/machine.py": {"test_tf32_on_xpu_is_onednns_and_put_back", "test_users_switches_have_onednns"},
}
"""The tests here that reach the special lines of a file."""


def word_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) and not set(node.value) & set(" #\n") else ""
    return str(getattr(node, "attr", "") or getattr(node, "id", "") or getattr(node, "arg", "") or "")


def test_each_file_with_special_lines_in_functions_has_tests_that_reach_them() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "xpu" in (text := path.read_text(encoding="utf-8")).lower()
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef)
        for statement in function.body
        for node in ast.walk(statement)
        if "xpu" in word_of(node).lower()
    }
    assert found == REACHED.keys()
    assert {name for names in REACHED.values() for name in names} <= globals().keys()


class Answers(SimpleNamespace):
    """What `torch.xpu` says of a card, scripted."""

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return not including_emulation

    def is_tf32_supported(self) -> bool:
        return True

    def get_device_properties(self) -> object:
        return SimpleNamespace(
            name="Intel(R) Arc(TM) A770 Graphics", total_memory=16 << 30, driver_version="1.6.31294", gpu_eu_count=512,
            platform_name="Intel(R) oneAPI Unified Runtime over Level-Zero", type="gpu",
        )  # fmt: skip


@pytest.fixture
def xpu(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A scripted XPU, of which torch can be asked everything and nothing runs; the switches of oneDNN set meanwhile."""
    switched: list[bool] = []
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch._C, "_set_onednn_allow_tf32", switched.append)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("xpu"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)
    monkeypatch.setattr(torch, "get_device_module", lambda type: Answers())
    monkeypatch.setattr(environment, "_refusal", lambda type, dtype: "no fp64" * (dtype is torch.float64))
    monkeypatch.setattr(torch.version, "xpu", "20250201", raising=False)
    return switched


def test_tf32_on_xpu_is_onednns_and_put_back(xpu: list[bool]) -> None:
    with precision_flags(PRECISIONS["tf32"]):
        assert xpu[-1] is True
    assert xpu[-1] is False
    del xpu[:]
    with precision_flags(PRECISIONS["fp32"]):
        assert xpu[-1] is False


def test_fp64_of_a_card_that_has_none_is_computed_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **given: Any) -> torch.Tensor:
        assert given["device"] == "xpu"
        raise RuntimeError("Required aspect fp64 is not supported on the device")

    monkeypatch.setattr(torch, "ones", refuse)
    assert isinstance(fp64_device(Accelerator("xpu")), Cpu)


def test_users_switches_have_onednns(xpu: list[bool]) -> None:
    with precision_flags(PRECISIONS["tf32"]):
        assert machine.users_switches()


def test_the_older_reference_is_about_xpu_alone() -> None:
    assert documented.documented_ops(documented.XPU_REFERENCE, "xpu")
    assert documented.documented_ops(documented.XPU_REFERENCE, "cuda") is None


def test_the_version_of_xpu_is_in_what_doctor_and_environment_say(monkeypatch: pytest.MonkeyPatch) -> None:
    header = make_header()
    told = doctor._installation(structs.replace(header.environment, xpu_version="20250201"), "")
    assert "XPU 20250201" in "\n".join(told)
    monkeypatch.setattr(torch.version, "xpu", "20250202", raising=False)
    assert environment.read_environment().xpu_version == "20250202"
