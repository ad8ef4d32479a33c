"""What a shell is offered when Tab is pressed: names that are known, quickly, and never a word that is none."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from ampbench.cli.main import verb, verbs
from ampbench.core.precisions import PRECISIONS
from ampbench.records.kinds import KINDS
from tests.stored_runs import COMPLETE, make_case, make_round, write_run

Offers = Callable[..., list[str]]
FP32 = make_case("fp32")
FIRST, SECOND = "20260131T120000Z-here-1f9a3c", "20260201T120000Z-there-77b0d2"


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    for run in (FIRST, SECOND):
        write_run(tmp_path / "stored", [FP32], make_round(FP32), COMPLETE, run=run)
    return tmp_path / "stored"


@pytest.fixture
def offered(ampbench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Offers:
    """What zsh is offered for what was typed."""

    def ask(typed: str) -> list[str]:
        words = typed.split(" ")
        monkeypatch.setenv("_AMPBENCH_COMPLETE", "zsh_complete")
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        said = ampbench()
        assert (said.code, said.err) == (0, "")
        return said.out.splitlines()[1::3]

    return ask


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("ampbench run resnet", ["resnet18", "resnet50"]),
        ("ampbench run mlp al", ["all"]),
        ("ampbench explain casts --precision fp32", ["fp32", "fp32_bf16_products"]),
        ("ampbench run --precision fp32,tf", ["fp32,tf32"]),
        ("ampbench run --device ", ["cpu", "cuda", "xpu"]),
        ("ampbench ab --phase tr", ["training"]),
        ("ampbench run --path tra", ["traced"]),
        ("ampbench run --preset ", ["tiny", "small", "large"]),
        ("ampbench study training --optimizer sg", ["sgd-vision", "sgd"]),
        ("ampbench list ", ["workloads", "precisions", "recipes", "devices", "checks", "runs"]),
        ("ampbench convert latest --to j", ["junit"]),
        ("ampbench check bf16-weight-u", ["bf16-weight-update"]),
        ("ampbench show --format m", ["markdown"]),
        ("ampbench run model.py", []),
        ("ampbench run --precision nonsense", []),
    ],
)
def test_values_are_offered(typed: str, expected: list[str], offered: Offers) -> None:
    assert offered(typed) == expected


def test_every_precision_is_offered(offered: Offers) -> None:
    assert offered("ampbench run --precision ") == [*PRECISIONS, "all"]


def test_runs_are_those_in_the_results_folder(stored: Path, offered: Offers) -> None:
    assert offered(f"ampbench show --results {stored} ") == [FIRST, SECOND, "latest"]
    assert offered(f"ampbench show --results {stored} 202602") == [SECOND]
    assert offered(f"ampbench compare --results {stored} {FIRST} l") == ["latest"]
    assert offered(f"ampbench run --results {stored} --resume 20260131") == [FIRST]
    assert offered(f"ampbench show --results {stored} 77") == ["77b0d2"]


def test_a_settings_file_says_where_runs_are(
    stored: Path, offered: Offers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert offered("ampbench show 20") == []
    (tmp_path / "ampbench.toml").write_text('results = "stored"\n')
    assert offered("ampbench show 20") == [FIRST, SECOND]
    (tmp_path / "ampbench.toml").write_text("reslts = 1\n")
    assert offered("ampbench show 20") == []


def test_each_argument_and_option_that_names_a_run_offers_them(stored: Path) -> None:
    asked = 0
    for name in verbs():
        command = verb(name)
        context = click.Context(command)
        context.params = {"results": stored}
        for parameter in command.params:
            if (parameter.metavar or "").strip("[].") in {"RUN", "BASE", "CANDIDATE", "SHARD"}:
                asked += 1
                assert FIRST in {one.value for one in parameter.shell_complete(context, "")}, (name, parameter.name)
    assert asked > len([one for one in KINDS.values() if one.resumed])


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("ampbench sh", ["show"]),
        ("ampbench run --prec", ["--precision"]),
        ("ampbench explain o", ["origin"]),
        ("ampbench explain origin --thr", ["--threads"]),
    ],
)
def test_verbs_and_options_are_offered(typed: str, expected: list[str], offered: Offers) -> None:
    assert offered(typed) == expected


def test_bash_gets_them(stored: Path, tmp_path: Path) -> None:
    if not (bash := shutil.which("bash")):
        pytest.skip("there is no bash")
    program = tmp_path / "ampbench"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ampbench "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = subprocess.run(
        [program], env=environment | {"_AMPBENCH_COMPLETE": "bash_source"}, capture_output=True, text=True, check=True
    ).stdout
    typed = ["ampbench", "show", "--results", str(stored), "202602"]
    words = " ".join(typed)
    asked = f"COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}; _ampbench_completion ampbench; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(
        [bash, "--norc", "-c", f"{script}\n{asked}"], env=environment, capture_output=True, text=True, check=True
    )
    assert (done.stdout.split(), done.stderr) == ([SECOND], "")


@pytest.mark.parametrize(
    "typed", ["ampbench ", "ampbench run res", "ampbench run --prec", "ampbench show --results {} 20"]
)
def test_tab_waits_for_nothing_heavy(typed: str, stored: Path, tmp_path: Path) -> None:
    code = "import sys; from ampbench.cli.main import main\nmain([])\nprint(*sys.modules, file=sys.stderr)"
    words = typed.format(stored)
    asked = {"_AMPBENCH_COMPLETE": "zsh_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    environment = os.environ | asked
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.strip()
    heavy = {"torch", "pandas", "scipy", "numpy", "rich", "pydantic"}
    assert not heavy & set(done.stderr.split())
