"""`ampbench explain origin` ranks modules as brute force in plain torch does: each alone in an island of fp32."""

import copy
import io
import json
import math
from contextlib import redirect_stdout
from typing import Any

import pytest
import torch
from torch import nn

from ampbench.cli.main import main
from tests.twin import networks
from tests.twin.arithmetic import FORMATS, FP64, Format, infer, relative

DIGITS = 1e-10
LOW = ("bf16_autocast", "fp16_autocast", "bf16_pure", "fp16_pure")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What `ampbench explain origin` has of each module, by precision and phase."""
    chosen = ["--precision", ",".join(LOW), "--phase", "inference,training", "--threads", "1"]
    kept = ["--results", str(tmp_path_factory.mktemp("origin")), "--json"]
    with redirect_stdout(io.StringIO()) as printed:
        assert main(["explain", "origin", f"{networks.__file__}:forgetting", *chosen, *kept]) == 0
    cases = json.loads(printed.getvalue())["cases"]
    return {(one["case"]["precision"], one["case"]["phase"]): one["tables"]["modules"] for one in cases}


def with_island(workload: Any, path: str, kind: Format) -> torch.Tensor:
    """Return the output in fp64 of a forward pass in which one module has fp32 weights and computes in fp32."""
    network = copy.deepcopy(workload.module).to(kind.storage)
    island: nn.Module = copy.deepcopy(workload.module.get_submodule(path))
    own = island.forward

    def forward(inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            output = own(inputs.float())
        return output if kind.autocast else output.to(kind.storage)

    island.forward = forward  # type: ignore[method-assign]
    network.set_submodule(path, island)
    with torch.no_grad(), torch.autocast("cpu", kind.autocast, kind.autocast is not None):
        return network(workload.inputs[0].to(kind.storage)).double()  # type: ignore[no-any-return]


@pytest.mark.parametrize("precision", LOW)
def test_modules_rank_as_brute_force_has_them(precision: str, tables: Any) -> None:
    workload, kind = networks.forgetting(), FORMATS[precision]
    exact = infer(workload, FP64).outputs
    paths = [path for path, _ in workload.module.named_children()]
    expected = {path: relative({"": with_island(workload, path, kind)}, exact) for path in paths}
    for phase in ("inference", "training"):
        kept = {row["module"]: row["kept_rel_l2"] for row in tables[precision, phase]}
        assert sorted(kept, key=kept.__getitem__) == sorted(expected, key=expected.__getitem__)
        assert all(math.isclose(kept[path], error, rel_tol=DIGITS) for path, error in expected.items())


def test_what_errs_most_by_itself_is_not_first_where_the_network_forgets_it(tables: Any) -> None:
    rows = {row["module"]: row for row in tables["bf16_autocast", "inference"]}
    assert max(rows, key=lambda path: rows[path]["own_rel_l2"]) == "loud"
    assert min(rows, key=lambda path: rows[path]["kept_rel_l2"]) == "early"
    assert rows["loud"]["kept_rel_l2"] > 2 * rows["early"]["kept_rel_l2"]
