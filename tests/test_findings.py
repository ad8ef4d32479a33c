"""Studies from Python: every one of the registry by one function, without a trace, as an object that shows itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import ampbench
from ampbench.cli.main import main
from ampbench.records.kinds import CHECK, KEEP_FP32, KINDS, NONFINITE, WATCH
from ampbench.studies.study import options_of, study_of
from tests.test_live import Net, everything, interrupted, raising, rows

STUDIES = [name for name, row in KINDS.items() if row.study and name != WATCH]
OF_CASES = [name for name in STUDIES if study_of(name).selects is not None]
QUICK: dict[str, Any] = {"steps": 2, "seconds": 0.005, "seeds": 1, "setting": "default", "max_trials": 3}
"""What options of these names are given, so that a study takes seconds."""


def public(kind: str) -> Callable[..., ampbench.Findings]:
    """Return the public function of a kind."""
    if kind == CHECK:
        return ampbench.check
    module = getattr(ampbench, KINDS[kind].group)
    function: Callable[..., ampbench.Findings] = getattr(module, kind.replace("-", "_"))
    return function


def names_of(kind: str) -> list[str]:
    own = [option.name for option in options_of(study_of(kind))]
    return own if study_of(kind).selects is not None else [*own, "device"]


def quick(kind: str) -> dict[str, Any]:
    return {name: value for name, value in QUICK.items() if name in names_of(kind)}


def trained(network: torch.nn.Module) -> dict[str, Any]:
    """Return what trains a network, in the precision of which studies ask where none is named."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    return {"loss": lambda output, target: cross_entropy(output.float(), target), "optimizer": optimizer}


@pytest.mark.parametrize("kind", [pytest.param(each, marks=pytest.mark.slow) if each == KEEP_FP32 else each
                                  for each in OF_CASES])  # fmt: skip
def test_a_study_of_a_network_leaves_no_trace_and_shows_itself(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    network, inputs, targets = Net(), rows(), torch.randint(0, 3, (6,))
    given = trained(network)
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        before = everything(network, given["optimizer"], inputs, targets)
        found = public(kind)(network, inputs, targets=targets, device="cpu", **given, **quick(kind))
        assert everything(network, given["optimizer"], inputs, targets) == before
    header = found.stored.header
    assert (header.explains, header.settings.isolation) == (kind, False)
    assert found.statements
    assert not found.stored.failures
    tables = [table.key for table in found.study.tables if table.key]
    assert list(found.tables) == tables
    assert len(found.frame) or kind == NONFINITE
    assert found.frame.equals(found.tables[tables[0]])
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False, default=str))
    assert data["run"] == header.run
    assert str(found).splitlines()[0] in found._repr_html_()

    path = found.save("results")
    assert ampbench.open(path).to_dict() == found.to_dict()
    assert main(["show", header.run]) == 0
    assert capsys.readouterr().out.strip("\n") == str(found)


@pytest.mark.parametrize("ending", [raising, interrupted])
def test_a_study_that_ends_early_leaves_no_trace_either(ending: Callable[..., Any]) -> None:
    network, inputs = Net(ending), rows()
    with torch.no_grad():
        before = everything(network, inputs)
        raised = ampbench.WorkloadError if ending is raising else KeyboardInterrupt
        with pytest.raises(raised) as told:
            ampbench.explain.origin(network, inputs, device="cpu")
        assert everything(network, inputs) == before
    assert "\n" not in str(told.value)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an option of no study": ({"stepps": 3}, "unknown option of study scope 'stepps': did you mean steps?"),
    "an option that all have, misspelled": ({"precision": "bf16"}, "did you mean precisions?"),
    "too few steps": ({"steps": 1}, "steps=1: Expected `int` >= 2"),
    "no number": ({"steps": "many"}, "steps='many': Expected `int`, got `str`"),
    "no duration": ({"seconds": "soon"}, "seconds='soon': "),
    "a time that is none": ({"seconds": 0}, "seconds=0: Expected `float` > 0.0"),
    "a precision that is none": ({"precisions": "bf61_autocast"}, "unknown precision 'bf61_autocast'"),
    "a device that is none": ({"device": "cud"}, "unknown device 'cud': did you mean cuda?"),
    "a phase that is none": ({"phase": "trainig"}, "unknown phase 'trainig': did you mean training?"),
    "a network without inputs": ({"inputs": None}, "Net is a network without inputs"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_is_one_line(what: str) -> None:
    options, expected = WRONG[what]
    network = Net()
    given = {"inputs": rows(), "targets": torch.randint(0, 3, (6,)), **trained(network), "device": "cpu"}
    with pytest.raises(ampbench.UsageError) as told:
        ampbench.study.scope(network, **{**given, **options})
    assert expected in str(told.value)
    assert "\n" not in str(told.value)


def test_what_is_of_a_device_is_done_by_processes_of_its_own() -> None:
    found = ampbench.study.ceilings(device="cpu", operation="copy", dtype=["fp32", "bf16"], seconds=0.005)
    assert found.stored.header.settings.isolation
    assert set(found.frame["dtype"]) == {"fp32", "bf16"}
    checked = ampbench.check("stale-weight-cast", device="cpu")
    assert list(checked.frame["check"]) == ["stale-weight-cast"]
    with pytest.raises(ampbench.UnknownNameError, match="did you mean stale-weight-cast"):
        ampbench.check("stale-weight-cats")


MODEL = """
import torch

def make():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)), torch.randn(4, 8)
"""


def test_a_program_and_the_command_line_find_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    threads = str(torch.get_num_threads())
    assert main(["explain", "origin", "model.py:make", "--device", "cpu", "--threads", threads, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["cases"]
    scope: dict[str, Any] = {}
    exec(MODEL, scope)
    (found,) = ampbench.explain.origin(*scope["make"](), device="cpu").to_dict()["cases"]
    assert {name: found[name] for name in ("statements", "tables")} == json.loads(
        json.dumps({name: told[name] for name in ("statements", "tables")})
    )
