"""Options that several verbs share."""

import re
from pathlib import Path

import pytest

from ampbench.cli.main import main
from ampbench.cli.options import SECTIONS, split_names


def test_names_are_typed_one_by_one_or_with_commas() -> None:
    assert split_names(["fp32,bf16_autocast", "tf32"]) == ["fp32", "bf16_autocast", "tf32"]
    assert split_names(["fp32, bf16_autocast,"]) == ["fp32", "bf16_autocast"]
    assert split_names(["fp32,"]) == ["fp32"]
    assert split_names([","]) == [","]
    assert split_names(None) is None


def test_more_names_than_a_file_name_has_characters_are_names() -> None:
    names = [f"workload_{number}" for number in range(40)]
    assert split_names([",".join(names)]) == names
    assert split_names(["x" * 300]) == ["x" * 300]


def test_a_file_with_a_comma_in_its_name_is_one_workload(tmp_path: Path) -> None:
    file = tmp_path / "a,b.py"
    file.touch()
    assert split_names([f"{file}:make"]) == [f"{file}:make"]
    assert split_names(["a.py:make,b.py:make"]) == ["a.py:make", "b.py:make"]


def test_every_option_of_run_stands_in_a_section_of_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    sections = re.findall(r"^(\w[\w ]*):$", capsys.readouterr().out, re.MULTILINE)
    assert sections == ["Arguments", *SECTIONS], "add the option to SECTIONS of cli/options.py"
