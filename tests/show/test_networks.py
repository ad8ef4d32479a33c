"""Networks in a table: the order, what is told of each, what precisions brought, and what has no result."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from ampbench.core.budget import Budget
from ampbench.core.units import times
from ampbench.judge.verdict import takes_of
from ampbench.result import Result
from ampbench.show.networks import Network, brought, in_order, lines_of, networks_of, tables
from ampbench.show.rows import Row
from ampbench.store import StoredRun, read_run
from tests.report.large_runs import write_zoo_run


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> StoredRun:
    return read_run(write_zoo_run(tmp_path_factory.mktemp("zoo"), networks=60, seed=1))


@pytest.fixture(scope="module")
def rows(zoo: StoredRun) -> list[Row]:
    return Result(zoo).rows


@pytest.fixture(scope="module")
def networks(zoo: StoredRun, rows: list[Row]) -> list[Network]:
    return networks_of(rows, takes_of(zoo, Budget()), zoo.cases)


def of_phase(networks: list[Network], phase: str) -> list[Network]:
    return [each for each in networks if each.rows[0]["phase"] == phase]


def test_every_network_has_one_row_in_the_table_of_its_phase(networks: list[Network], rows: list[Row]) -> None:
    measured = Counter({(row["workload"], row["phase"]) for row in rows if row["outcome"] == "ok"})
    assert Counter((each.rows[0]["workload"], each.rows[0]["phase"]) for each in networks) == measured
    found = tables(networks)
    assert [block.title.partition(":")[0] for block in found] == ["inference", "training"]
    assert [len(block.rows) for block in found] == [len(of_phase(networks, name)) for name in ("inference", "training")]


def test_the_largest_gain_comes_first_then_what_stays_then_what_has_no_advice(networks: list[Network]) -> None:
    for phase in ("inference", "training"):
        own = of_phase(networks, phase)
        gains = [each.taken["speedup_vs_fp32"] for each in own if each.taken and not each.stays]
        assert gains == sorted(gains, reverse=True)
        assert len(gains) > 3
        assert [each.stays for each in own] == sorted(each.stays for each in own)
        without = replace(own[0], name="nothing", rows=[row | {"taken": False} for row in own[0].rows])
        assert in_order([without, *own])[-1].name == "nothing"


def test_a_row_has_what_the_run_advises_with_its_numbers(networks: list[Network]) -> None:
    block = tables(of_phase(networks, "inference"))[0]
    best, cells = networks[0], dict(zip(block.headers, block.rows[0], strict=True))
    assert best.taken is not None
    assert (cells["network"], cells["take"]) == (best.name, best.take.precision)
    low, high = best.taken["speedup_low"], best.taken["speedup_high"]
    assert cells["speed"] == f"{best.taken['speedup_vs_fp32']:.2f}x ({low:.2f}–{high:.2f})"
    later = replace(best, rows=[{**best.taken, "output_worst_rel_l2_late": 0.25}])
    assert lines_of([later])[0]["error"] == 0.25  # the error of the table of cases
    blind = replace(best, rows=[{**row, "memory_ratio_vs_fp32": None} for row in best.rows])
    (block,) = tables([blind])
    assert block.rows[0][block.headers.index("memory")] == ""


def test_means_over_networks_are_geometric_with_their_t_interval(networks: list[Network]) -> None:
    block = brought(networks)
    cells = next(dict(zip(block.headers, row, strict=True)) for row in block.rows if row[0] == "bf16_autocast")
    known = [row for each in networks for row in each.rows if row["precision"] == "bf16_autocast"]
    own = [row for row in known if row["outcome"] == "ok"]
    logs = np.log([row["speedup_vs_fp32"] for row in own])
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=stats.sem(logs))
    ends = (times(math.exp(end)).rstrip("x") for end in (low, high))
    assert cells["speed"] == f"{times(math.exp(logs.mean()))} ({'–'.join(ends)})"
    assert cells["ok"] == f"{sum(row['verdict'] == 'ok' for row in own)} of {len(own)}"
