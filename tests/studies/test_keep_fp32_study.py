"""What a search for modules to keep in fp32 comes to: sets, conclusions, the code to paste, the page."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.drive.planning import find_workloads
from ampbench.records.case import Case
from ampbench.show.studies import lines as words
from ampbench.studies.keep_fp32 import (
    Keep,
    Limits,
    Searched,
    TimedSet,
    code,
    conclusions,
    islands,
    kept_sets,
    share_of,
    units_of,
)
from tests.scripted_channel import got, make_request
from tests.studies.keep_searches import CASE, SPACE, TRIALS, searched, space_of, trial

NET = space_of(
    *([path] for path in ("stem", "layer1.a", "layer1.b", "layer10.conv", "layer10.deep.x", "layer10.deep.y", "fc")),
    containers=["", "layer1", "layer10", "layer10.deep"],
)
TRAINING = Limits(max_error=2e-3, max_gradient_error=1e-1)
UPDATES = Limits(max_error=2e-3, max_gradient_error=1e-1, min_update_kept=0.98)


@pytest.mark.parametrize(
    ("units", "named"),
    [
        ((), []),
        (range(7), [""]),
        ((6, 0, 3), ["stem", "layer10.conv", "fc"]),
        ((1, 2, 6), ["layer1", "fc"]),
        ((3, 4, 5), ["layer10"]),
        ((4, 5), ["layer10.deep"]),
    ],
)
def test_the_outermost_container_that_is_kept_whole_is_named(units: tuple[int, ...], named: list[str]) -> None:
    assert islands(NET, frozenset(units)) == named
    assert units_of(NET, named) == set(units)


def test_a_container_is_whole_only_with_the_units_it_shares_with_others() -> None:
    space = space_of(["a.x", "b.x"], ["a.y"], ["b.y"], ["b.z", "b.w"], containers=["", "a", "b", "unused"])
    assert islands(space, {1}) == ["a.y"]
    assert islands(space, {0, 1}) == ["a", "b.x"]
    assert islands(space, {2, 3}) == ["b.y", "b.z", "b.w"]
    assert islands(space, {0, 2, 3}) == ["a.x", "b"]


@given(st.data())
def test_the_units_of_islands_are_those_asked_for(data: st.DataObject) -> None:
    paths = [f"layers.{place // 3}.part{place % 3}" for place in range(12)]
    leaves = data.draw(st.lists(st.sampled_from(paths), unique=True, min_size=1))
    tied = data.draw(st.integers(0, len(leaves)))
    units = [leaves[:tied][::-1]] * bool(tied) + [[path] for path in leaves[tied:]]
    space = space_of(*units, containers=["", "layers", *(f"layers.{block}" for block in range(4))])
    chosen = data.draw(st.frozensets(st.integers(0, len(units) - 1)))
    named = islands(space, chosen)
    assert units_of(space, named) == chosen
    assert not any(inner.startswith(f"{outer}.") for outer in named for inner in named)


@pytest.mark.parametrize(
    ("limits", "errs", "share"),
    [
        (TRAINING, {"error": 2e-3, "grad_rel_l2": 5e-2}, 1.0),
        (TRAINING, {"error": 1e-3, "grad_rel_l2": 0.3}, 3.0),
        (TRAINING, {"error": 1e-3}, math.inf),
        (SPACE.limits, {"error": 1e-3}, 0.5),
        (SPACE.limits, {"nonfinite": 3}, math.inf),
        (Limits(max_error=0.0), {"error": 0.0}, 0.0),
        (Limits(max_error=0.0), {"error": 1e-9}, math.inf),
        (UPDATES, {"error": 0.0, "grad_rel_l2": 0.0, "update_kept": 0.96}, 2.0),
        (UPDATES, {"error": 0.0, "grad_rel_l2": 0.0, "update_kept": 1.1}, 0.0),
        (UPDATES, {"error": 0.0, "grad_rel_l2": 0.0, "update_nonfinite": 4}, math.inf),
        (UPDATES, {"error": 0.0, "grad_rel_l2": 0.0, "update_undefined": "no optimizer"}, 0.0),
    ],
)
def test_the_worst_of_errors_and_updates_decides(limits: Limits, errs: dict[str, Any], share: float) -> None:
    assert share_of(limits, trial(0, **errs)) == pytest.approx(share)


def test_sets_stand_by_size_with_what_they_err_and_cost() -> None:
    rows = kept_sets(searched("norm"))
    assert [(row.units, row.found, row.meets, row.refuted) for row in rows] == [
        (0, False, False, False), (1, True, True, False), (3, False, True, False), (4, False, True, False)
    ]  # fmt: skip
    norm = rows[1]
    assert norm.ratio is not None
    assert (norm.ratio.value, norm.ratio.low, norm.ratio.high) == pytest.approx((1.04, 1.04, 1.04))
    assert norm.timed.peak_bytes == (1 << 20) + 512
    assert (rows[2].timed, rows[2].ratio) == (TimedSet(), None)


def concluded(record: Searched) -> dict[Keep, Mapping[str, Any]]:
    """Return the facts of what is concluded by its code, the last of several of one."""
    statements = list(conclusions(CASE, record))
    assert words(statements)
    return {each.code: each.facts for each in statements}  # type: ignore[misc]


def test_what_is_kept_what_that_errs_and_what_it_costs_is_concluded() -> None:
    told = concluded(searched("norm"))
    assert list(told) == [Keep.FOUND, Keep.ERROR, Keep.MINIMAL, Keep.TIME, Keep.FASTER, Keep.PEAK]
    assert told[Keep.FOUND] == {"units": 1, "modules": 4, "trials": 4, "names": "norm"}
    assert told[Keep.ERROR] == {
        "what": "output", "reference": "fp64", "error": 1.9e-3, "before": 3.1e-2, "limit": 2e-3
    }  # fmt: skip
    assert told[Keep.TIME]["ratio"] == pytest.approx(1.04)
    assert told[Keep.FASTER]["ratio"] == pytest.approx(1.04 / 1.62)
    assert told[Keep.PEAK] == {"kept": (1 << 20) + 512, "none": 1 << 20, "all": 2 << 20}


def test_where_nothing_meets_the_budget_the_closest_is_named() -> None:
    tight = Limits(max_error=1e-8)
    told = concluded(searched(kept=None, limits=tight))
    assert list(told) == [Keep.MISSED, Keep.CLOSEST, Keep.ERROR]
    assert (told[Keep.MISSED]["trials"], told[Keep.CLOSEST]["names"], told[Keep.ERROR]["error"]) == (4, "all", 4e-7)
    untried = concluded(searched(kept=None, limits=tight, trials=TRIALS[:1]))
    assert (untried[Keep.MISSED]["untried"], untried[Keep.CLOSEST]["names"]) == (True, "none")


def test_a_search_that_did_not_end_tells_the_smallest_set_so_far() -> None:
    begun = Searched(space=SPACE, trials=TRIALS)
    assert concluded(begun)[Keep.UNFINISHED] == {"names": "norm", "units": 1, "modules": 4, "trials": 4}
    assert concluded(Searched(space=SPACE, trials=TRIALS[:1]))[Keep.UNFINISHED]["units"] == 0


def test_what_arrives_of_an_update_is_told_where_it_is_bounded() -> None:
    low, kept = {"grad_rel_l2": 0.0, "update_kept": 0.4}, {"grad_rel_l2": 0.0, "update_kept": 0.99}
    trials = [trial(0, error=1e-3, **low), trial(1, "", error=0.0), trial(2, "norm", error=1e-3, **kept)]
    told = concluded(searched("norm", trials=trials, limits=UPDATES))[Keep.UPDATE]
    assert told == {"share": 0.99, "before": 0.4, "limit": 0.98}
    unknown = [structs.replace(each, update_kept=None, update_undefined="no optimizer") for each in trials]
    assert concluded(searched("norm", trials=unknown, limits=UPDATES))[Keep.UPDATE]["why"] == "no optimizer"


ROOT = Path(__file__).parents[2]

MODEL = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
        self.norm = torch.nn.LayerNorm(16)
        self.add_module("odd[0]*", torch.nn.Linear(16, 16))
        self.head = torch.nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.get_submodule("odd[0]*")(self.norm(x + self.body(x))))


class Tokens(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50_000, 16)
        self.body = Net()

    def forward(self, ids, weights=None):
        rows = self.embed(ids).sum(dim=1)
        return self.body(rows if weights is None else rows * weights)


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = Net()
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(torch.nn.functional.dropout(self.body(x), training=self.training))


def normed():
    network = Normed()
    torch.nn.init.constant_(network.norm.running_var, 4.0)
    return network, torch.randn(8, 16)


def named():
    return Tokens(), {"ids": torch.randint(2050, 50_000, (8, 5)), "weights": torch.rand(8, 1)}
"""

SCRIPT = """
import copy
import sys

import torch
sys.path.insert(0, ".")
import model as models

torch.set_num_threads(1)
torch.manual_seed(0)
model, inputs = getattr(models, sys.argv[1])()
doubled = torch.utils._pytree.tree_map(lambda x: x.double() if x.is_floating_point() else x, inputs)
with torch.inference_mode():
    exact = copy.deepcopy(model).double().eval()
    expected = exact(**doubled) if isinstance(doubled, dict) else exact(doubled)
    model.eval()
    exec(open("pasted.py").read())
    lowered, storage = sys.argv[2], getattr(torch, sys.argv[3])
    inputs = torch.utils._pytree.tree_map(lambda x: x.to(storage) if x.is_floating_point() else x, inputs)
    with torch.autocast("cpu", dtype=getattr(torch, lowered, None), enabled=bool(lowered)):
        output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
print(float((output.double() - expected).norm() / expected.norm()))
"""


def lines(precision: str, *kept: str, **case: Any) -> list[str]:
    return code(structs.replace(CASE, precision=precision, **case), searched(*kept))["torch"].splitlines()


def test_a_pure_network_is_kept_before_it_is_moved_and_gives_back_its_own_dtype() -> None:
    assert lines("bf16_pure", "norm") == [
        "import torch",
        "",
        "import ampbench",
        "",
        'ampbench.keep_fp32(model, "norm", cast_back=True)',
        "model = model.to(torch.bfloat16)  # after keep_fp32: what is kept stays fp32",
    ]


def test_names_that_would_be_patterns_are_escaped_and_quotes_survive() -> None:
    text = "\n".join(lines("fp16_autocast", "odd[0]*", 'a"b'))
    assert '"odd[[]0][*]"' in text
    assert '"a\\"b"' in text
    compile(text, "pasted", "exec")


def test_many_names_have_a_line_each() -> None:
    names = [f"encoder.layers.{place}.self_attention" for place in range(9)]
    text = lines("fp16_pure", *names)
    first = text.index("ampbench.keep_fp32(") + 1
    assert text[first : first + 10] == ["    model,", *(f'    "{name}",' for name in names)]
    assert text[first + 10 : first + 12] == ["    cast_back=True,", ")"]
    assert max(map(len, text)) <= 100
    compile("\n".join(text), "pasted", "exec")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "precision", "kept"),
    [
        ("normed", "fp16_pure", ["norm", "body.odd[0]*"]),
        ("named", "bf16_pure", ["body.norm"]),
        ("named", "fp16_autocast", ["body.norm"]),
    ],
)
def test_pasted_into_a_fresh_program_it_errs_what_the_trial_erred(
    make: str, precision: str, kept: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ampbench.worker.worker import Worker

    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    (source,) = find_workloads(f"model.py:{make}")
    short = SHORT_DTYPES[PRECISIONS[precision].storage]
    case: Case = structs.replace(CASE, workload=source.name, family="user", precision=precision, input_dtype=short)
    reply = Worker().serve(make_request("trial", source=source, case=case, kept=kept, threads=1))
    tried = got("trial", reply)
    assert tried.output_rel_l2

    (tmp_path / "pasted.py").write_text(code(case, searched(*kept))["torch"])
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    row = PRECISIONS[precision]
    words = [make, row.autocast or "", row.storage]
    ran = subprocess.run(
        [sys.executable, "script.py", *words], capture_output=True, text=True, env=environment, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == pytest.approx(tried.output_rel_l2, rel=1e-6)
