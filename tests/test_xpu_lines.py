"""Every line of ampbench that is special to XPU: by what a test reaches it without one, and which no test reaches.

A line is special where a name or a short text of its code has "xpu" in it; prose and links are not. Lines outside
functions are rows of tables, which importing reaches and the tests of those tables judge; those within are traced here.
"""

import ast
import dataclasses
import importlib
import io
import sys
import tokenize
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec import structs

import ampbench
from ampbench.cli import doctor
from ampbench.core.precisions import PRECISIONS
from ampbench.trace import rules as documented
from ampbench.worker import environment, machine
from ampbench.worker.machine import Accelerator, Cpu, Products, fp64_device, precision_flags
from tests.stored_runs import make_header

PACKAGE = Path(ampbench.__file__).parent
PAGE = PACKAGE.parent / "docs" / "xpu.md"

UNREACHED: dict[str, str] = {}
"""Special lines within functions that no test here reaches ("file: line"), and why; docs/xpu.md names each."""


def special(path: Path) -> set[int]:
    """Return the numbers of the lines of a file that are special to XPU."""
    text = path.read_text(encoding="utf-8")
    if "xpu" not in text.lower():
        return set()
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if "xpu" in token.string.lower() and token.start[0] not in prose and _is_code(token)
    }


def _is_code(token: tokenize.TokenInfo) -> bool:
    short = token.type == tokenize.STRING and not set(token.string) & set(" #")
    return token.type == tokenize.NAME or short


def codes_within(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from codes_within(constant)


def within_functions(path: Path) -> set[int]:
    """Return the special lines of a file that run only where a function is called."""
    whole = compile(path.read_text(encoding="utf-8"), str(path), "exec")
    lines: set[int] = set()
    for code in codes_within(whole):
        if code.co_flags & 0x2:  # a function's own names, CO_NEWLOCALS: a class body runs as its module is imported
            lines.update(line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno)
    return special(path) & lines


@cache
def special_files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if special(path))


@cache
def special_within_functions() -> set[tuple[str, int]]:
    return {(str(path), line) for path in special_files() for line in within_functions(path)}


class Answers(SimpleNamespace):
    """What `torch.xpu` says of a card, scripted."""

    def is_bf16_supported(self) -> bool:  # as an older torch has it, which does not tell emulation apart
        return True

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


def test_an_xpus_own_switch_is_told_as_a_user_writes_it(xpu: list[bool]) -> None:
    found = dataclasses.replace(Products.now(), onednn=True)
    assert found.told()["torch.backends.mkldnn.allow_tf32"] == "True"


def test_a_card_is_described_by_what_torch_says_of_it(xpu: list[bool]) -> None:
    found = environment._accelerator("xpu")
    assert (found.available, found.name, found.memory_bytes) == (True, "Intel(R) Arc(TM) A770 Graphics", 16 << 30)
    assert (found.driver, found.tf32, found.float64) == ("1.6.31294", True, False)
    assert found.arithmetic == {"fp32": "native", "bf16": "native", "fp16": "native"}
    assert found.details["gpu_eu_count"] == "512"


def test_fp64_of_a_card_that_has_none_is_computed_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **given: Any) -> torch.Tensor:
        assert given["device"] == "xpu"
        raise RuntimeError("Required aspect fp64 is not supported on the device")

    monkeypatch.setattr(torch, "ones", refuse)
    assert isinstance(fp64_device(Accelerator("xpu")), Cpu)


def told_everywhere() -> list[str]:
    """Do what reaches the special lines, and return what is said of an XPU."""
    header = make_header()
    header = structs.replace(header, environment=structs.replace(header.environment, xpu_version="20250201"))
    assert documented.documented_ops(documented.XPU_REFERENCE, "xpu")
    assert documented.documented_ops(documented.XPU_REFERENCE, "cuda") is None
    return [
        "\n".join(doctor._installation(header.environment, "")),
        str(environment.read_environment().xpu_version),
    ]


def lines_reached(do: Callable[[], Any]) -> set[tuple[str, int]]:
    """Return the special lines that run while `do` does."""
    files, reached = {str(path) for path in special_files()}, set()

    def each_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            reached.add((frame.f_code.co_filename, frame.f_lineno))
        return each_line

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: each_line if frame.f_code.co_filename in files else None)
    try:
        do()
    finally:
        sys.settrace(before)
    return reached & special_within_functions()


def test_every_special_line_is_reached_but_those_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    documented.document.cache_clear()
    documented.documented_ops.cache_clear()

    def all_of_it() -> None:
        told = told_everywhere()
        assert all("XPU 20250201" in each for each in told[:1])
        monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
        monkeypatch.setattr(torch._C, "_set_onednn_allow_tf32", lambda value: None)
        with precision_flags(PRECISIONS["tf32"]):
            machine.users_switches()

    missed = special_within_functions() - lines_reached(all_of_it)
    named = {f"{Path(file).relative_to(PACKAGE.parent)}: {_line(file, number)}" for file, number in missed}
    assert named == set(UNREACHED)


def _line(file: str, number: int) -> str:
    return Path(file).read_text(encoding="utf-8").splitlines()[number - 1].strip()


def test_what_is_outside_functions_is_there_once_imported() -> None:
    for path in special_files():
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        assert importlib.import_module(module), path


def test_the_page_names_every_line_that_no_test_reaches() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [line for line in UNREACHED if line not in page] == []
    assert ("There is none." in page) == (not UNREACHED)
