from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from ampbench.judge.compare import compare
from ampbench.judge.rounds import MeasuredRun, Role, grid, power_error
from ampbench.records.changes import ChangeCode
from ampbench.records.measured import Round, Telemetry
from tests.compared_runs import BF16, FP32, Times, make_run
from tests.stored_runs import make_case, make_header, make_round


def test_rounds_become_a_table_by_their_numbers_or_by_their_order():
    stored = make_run(Times((FP32, []), (BF16, [])))
    stored.rounds[:] = [make_round(FP32, 3.0, 7), make_round(BF16, 1.0, 5), make_round(FP32, 2.0, 5)]
    rounds = MeasuredRun.of(stored).rounds
    numbered = grid(rounds, rounds.seconds, Role.OWN, [1, 0], np.array([5, 7]))
    np.testing.assert_array_equal(numbered, [[1.0, np.nan], [2.0, 3.0]])
    ordered = grid(rounds, rounds.seconds, Role.OWN, [1, 0], None)
    np.testing.assert_array_equal(ordered, [[1.0, np.nan], [3.0, 2.0]])
    assert grid(rounds, rounds.seconds, Role.CONTROL, [0], None).shape == (1, 0)
    assert grid(rounds, rounds.seconds, Role.OWN, [], None).shape == (0, 0)


def test_the_bursts_of_an_accelerator_count_until_every_case_of_a_table_has_sustained_rounds():
    """A speedup of a sustained time over a burst would be of no step: a clock falls under load."""
    fp32, bf16 = (make_case(name, device="cuda") for name in ("fp32", "bf16_pure"))
    bursts = [make_round(case, 1e-3) for case in (fp32, bf16)]
    sustained = [make_round(case, 2e-3, number=1, windows=[[2e-3]]) for case in (fp32, bf16)]
    stored = make_run(Times((fp32, []), (bf16, [])))

    def seconds(*rounds: Round) -> list[float]:
        found = MeasuredRun.of(replace(stored, rounds=list(rounds)))
        assert set(found.kinds.values()) == {"in bursts" if len(rounds) < 4 else "sustained"}
        return list(found.seconds.values())

    assert seconds(*bursts) == seconds(*bursts, sustained[0]) == [1e-3, 1e-3]
    assert seconds(*bursts, *sustained) == [2e-3, 2e-3]


def test_a_burst_is_not_compared_with_sustained_rounds():
    case = make_case("fp32", device="cuda")
    burst, sustained = (make_run(Times((case, [])), header=make_header(run=name)) for name in ("burst", "sustained"))
    burst.rounds[:] = [make_round(case, 1e-3)]
    sustained.rounds[:] = [make_round(case, 2e-3, windows=[[2e-3]])]
    (found,) = [one for one in compare(burst, sustained).findings if one.metric == "seconds_median"]
    assert (found.code, found.facts) == (ChangeCode.OTHER_MACHINE, {"timing": "in bursts → sustained"})


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, 0.11),
        ({"period_seconds": None, "averaged_seconds": None}, 0.05),
        ({"window_seconds": 0.01}, 0.65),
        ({"window_seconds": None}, 0.65),
        ({"power_error_watts": None}, 0.06),
        ({"power_low_watts": None}, None),
        ({"power_watts": None}, None),
    ],
)
def test_power_is_as_uncertain_as_its_readings_and_what_they_blur_at_both_ends(changes, error):
    told = Telemetry(
        power_watts=100.0, power_low_watts=80.0, power_high_watts=140.0, power_error_watts=5.0, period_seconds=0.02,
        averaged_seconds=0.08, window_seconds=1.0,
    )  # fmt: skip
    assert power_error(structs.replace(told, **changes)) == (None if error is None else pytest.approx(error))
