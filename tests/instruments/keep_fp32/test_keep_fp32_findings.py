"""What weighed sets come to: errors, times against the step that keeps none, which are worth their price, words.

And the code to paste: what it calls, that its names are no patterns, and that it errs what the trial erred.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from ampbench.core.precisions import PRECISIONS, SHORT_DTYPES
from ampbench.drive.planning import find_workloads
from ampbench.instruments.keep_fp32.findings import closest, code, meets, points, said, so_far
from ampbench.instruments.keep_fp32.records import Trial, Wanted, Weighed, Weighing
from ampbench.records.case import Case
from ampbench.records.measured import Fitness
from ampbench.studies.paired import ratio_of
from tests.instruments.keep_fp32.searches import CASE, SPACE, TRIALS, found, trial, weighed
from tests.scripted_channel import got, make_request


def weighing(*sets: Weighed) -> Weighing:
    return Weighing(case_id=CASE.case_id, weighed=list(sets))


def test_a_set_is_worth_the_median_of_the_fastest_samples_of_its_builds() -> None:
    one = points(found("norm"), SPACE, TRIALS)[1]
    assert one.seconds == pytest.approx(1.04e-3 * 1.035)
    assert one.against_low is not None
    assert one.against_low.value == pytest.approx(1.04)
    assert one.against_low.low == pytest.approx(1.04)
    assert (one.units, one.output_rel_l2, one.peak_bytes) == (1, 1.9e-3, (1 << 20) + 512)


def test_the_found_set_and_those_that_meet_the_budget_are_marked() -> None:
    made = points(found("norm"), SPACE, TRIALS)
    assert [point.found for point in made] == [False, True, False, False]
    assert [point.meets for point in made] == [False, True, True, True]


def test_a_set_that_is_slower_needs_more_and_errs_more_than_another_is_not_on_the_front() -> None:
    front = [point.on_front for point in points(found("norm"), SPACE, TRIALS)]
    # body and norm need more memory than plain fp32 but err more and save time
    assert front == [True, True, True, True]
    none, norm = found().weighing.weighed[:2]
    slower = weighing(none, norm, weighed(["body", "norm"], 1.7e-3, peak=3 << 20), weighed([""], 1.6e-3))
    front = [point.on_front for point in points(found("norm", weighing=slower), SPACE, TRIALS)]
    assert front == [True, True, False, True]


def test_times_that_may_be_equal_beat_nobody() -> None:
    # equal errors and memory, and the faster in five of eight builds only
    one, other = weighed(["norm"], 1e-3), weighed(["body", "norm"], 1e-3)
    noise = [1.01, 0.99, 1.02, 0.97, 0.98, 1.005, 1.03, 0.985]
    other = structs.replace(other, samples=[[a * b for a in s] for s, b in zip(one.samples, noise, strict=True)])
    same = [trial(0, "norm", error=1e-3), trial(1, "body", "norm", error=1e-3)]
    made = points(found("norm", weighing=weighing(one, other)), SPACE, same)
    assert [point.on_front for point in made] == [True, True]
    certain = structs.replace(other, samples=[[1.1 * a for a in s] for s in one.samples])
    made = points(found("norm", weighing=weighing(one, certain)), SPACE, same)
    assert [point.on_front for point in made] == [True, False]


def test_without_builds_enough_for_an_interval_no_set_beats_another() -> None:
    few = weighing(weighed([], 1e-3, builds=3), weighed(["norm"], 5e-3, builds=3))
    made = points(found("norm", weighing=few), SPACE, [trial(0, error=1e-3), trial(1, "norm", error=1e-2)])
    assert [point.on_front for point in made] == [True, True]
    assert made[1].against_low is not None
    assert (made[1].against_low.low, made[1].against_low.high) == (None, None)


def test_a_set_of_which_more_of_the_update_arrives_is_beaten_by_none_of_which_less_does() -> None:
    even = weighing(weighed([], 1e-3), weighed(["norm"], 1.5e-3))
    trials = [trial(0, error=1e-3, update_kept=0.98), trial(1, "norm", error=1e-3, update_kept=0.99)]
    search = found("norm", weighing=even, min_update_kept=0.98)
    assert [point.on_front for point in points(search, SPACE, trials)] == [True, True]
    beyond = [trial(0, error=1e-3, update_kept=1.0), trial(1, "norm", error=1e-3, update_kept=1.2)]
    assert [point.on_front for point in points(search, SPACE, beyond)] == [True, False]


def test_a_set_of_which_nothing_was_measured_has_no_numbers() -> None:
    (point,) = points(found("norm", weighing=weighing(Weighed(kept=["norm"]))), SPACE, [])
    assert (point.seconds, point.against_low, point.peak_bytes, point.output_rel_l2) == (None, None, None, None)
    assert not point.meets
    assert points(found("norm", weighing=None), SPACE, TRIALS) == []


@given(st.lists(st.floats(0.5, 2.0), min_size=6, max_size=12), st.floats(0.3, 3.0))
def test_a_ratio_is_that_of_builds_in_pairs_whatever_the_pair_has_in_common(luck: list[float], factor: float) -> None:
    before = [[one] for one in luck]
    after = [[factor * one] for one in luck]
    ratio = ratio_of(after, before)
    assert ratio.value == pytest.approx(factor)
    noisy = max(luck) > 3 * min(luck)
    assert (ratio.low is None) == noisy
    if ratio.low is not None and ratio.high is not None:
        assert ratio.low <= ratio.value * (1 + 1e-9)
        assert ratio.high >= ratio.value * (1 - 1e-9)


def test_a_trial_meets_the_budget_only_with_errors_that_are_defined() -> None:
    inference, training = found(), found(max_gradient_error=1e-1)
    assert meets(inference, trial(0, error=2e-3))
    assert not meets(inference, trial(0, error=2.1e-3))
    assert not meets(inference, trial(0, nonfinite=3))
    assert not meets(inference, Trial(case_id="", error="RuntimeError: no"))
    assert not meets(training, trial(0, error=1e-3))
    assert meets(training, trial(0, error=1e-3, grad_rel_l2=1e-1))
    assert not meets(training, trial(0, error=1e-3, grad_rel_l2=1.1e-1))


def test_the_closest_trial_is_that_whose_worst_error_is_the_fewest_times_its_limit() -> None:
    trials = [
        trial(0, nonfinite=1),
        trial(1, "norm", error=8e-3, grad_rel_l2=1e-2),
        trial(2, "", error=1e-4, grad_rel_l2=0.3),
    ]
    best = closest(found(max_gradient_error=1e-1), trials)
    assert best is not None
    assert best.number == 2
    assert closest(found(), trials[:1]) is None
    assert closest(found(), []) is None


def test_the_headline_says_what_is_kept_what_that_brings_and_what_it_costs() -> None:
    lines = said(found("norm"), SPACE, TRIALS)
    step = "the step takes 1.04 times (95%: 1.04 to 1.04) as long as with none kept"
    assert lines[:3] == [
        "1 of 4 modules kept in fp32 (norm) brings the output error from 3.1e-02 to 1.9e-03 (budget 2.0e-03)",
        "no smaller set does, given that keeping more never errs more; 23 trials",
        f"{step}; with all kept 1.62 times (95%: 1.62 to 1.62)",
    ]
    fp32 = "with these modules kept, the step takes 0.64 times (95%: 0.64 to 0.64) as long as with all in fp32"
    assert lines[3] == fp32
    assert lines[4] == "peak memory 1.00 MiB with these modules kept, 1.00 MiB with none, 2.00 MiB with all"


def test_where_the_step_was_not_timed_beside_fp32_it_says_so_and_what_measures_it() -> None:
    how = "speed against fp32 was not measured: ampbench run measures a function whose network keeps these modules"
    without_whole = weighing(*found().weighing.weighed[:3])
    for untimed in (None, without_whole):
        lines = said(found("norm", weighing=untimed), SPACE, TRIALS)
        assert [line for line in lines if "fp32 was" in line] == [f"{how} beside fp32"]
    assert not [line for line in said(found(weighing=None), SPACE, TRIALS) if "fp32 was" in line]  # none is kept


def test_of_more_modules_than_a_sentence_names_it_says_where_all_are() -> None:
    names = [f"blocks.{place}" for place in range(8)]
    (line, *_) = said(found(*names, units=8, weighing=None), SPACE, TRIALS)
    assert f"({', '.join(names[:6])} and 2 more, all in the code to paste)" in line


def test_what_is_not_proven_is_not_said_to_be() -> None:
    lines = said(found("norm", smallest=False), SPACE, TRIALS)
    assert lines[1] == "whether a smaller set does is not proven: none was found in 23 trials"


def test_values_that_are_not_finite_are_named_in_place_of_an_error() -> None:
    trials = [trial(0, nonfinite=12), *TRIALS[1:]]
    (line, *_) = said(found("norm"), SPACE, trials)
    assert "the output error from undefined (12 values not finite) to 1.9e-03" in line


def test_where_nothing_need_be_kept_that_is_said() -> None:
    lines = said(found(max_error=5e-2, trials=1, units=0), SPACE, TRIALS)
    assert lines[:2] == ["no module need be kept in fp32: the output error is 3.1e-02 (budget 5.0e-02)", "1 trial"]
    assert "with all modules kept, the step takes 1.62 times (95%: 1.62 to 1.62) as long as with none" in lines


def test_where_nothing_meets_the_budget_the_closest_is_named() -> None:
    lines = said(found(found=None, max_error=1e-8, units=0, smallest=False), SPACE, TRIALS)
    assert lines[:3] == [
        "no set of modules kept in fp32 meets the budget",
        "the closest is all modules kept: the output error is 4.0e-07 (budget 1.0e-08)",
        "23 trials",
    ]


def test_where_not_even_the_whole_network_was_tried_nothing_is_said_of_other_sets() -> None:
    lines = said(found(found=None, trials=1, weighing=None, smallest=False), SPACE, TRIALS[:1])
    assert lines == [
        "no set of modules that was tried meets the budget",
        "the closest is no module kept: the output error is 3.1e-02 (budget 2.0e-03)",
        "1 trial",
    ]


def test_a_set_without_times_is_beside_others_without_a_ratio() -> None:
    for empty in ([], [[], [1e-3]]):
        low = Weighed(kept=[], samples=empty)
        made = points(found("norm", weighing=weighing(low, weighed(["norm"], 1e-3))), SPACE, TRIALS)
        assert [point.against_low for point in made] == [None, None]


def test_where_another_set_than_fp32_is_the_closest_both_are_told() -> None:
    trials = [*TRIALS[:1], trial(1, "", error=3e-3), trial(2, "norm", error=2.5e-3)]
    lines = said(found(found=None), SPACE, trials)
    assert lines[1:3] == [
        "the closest is norm kept: the output error is 2.5e-03 (budget 2.0e-03)",
        "with all modules kept, the output error is 3.0e-03 (budget 2.0e-03)",
    ]


def test_where_every_trial_fails_the_first_error_is_told() -> None:
    lines = said(
        found(found=None, weighing=None),
        SPACE,
        [trial(0), Trial(case_id="", number=1, kept=[""], error="RuntimeError: no")],
    )
    assert lines[1] == "no set that was tried has errors that are defined: RuntimeError: no"


def test_a_budget_of_nothing_has_a_closest_set_too() -> None:
    lines = said(
        found(found=None, weighing=None, max_error=0.0), SPACE, [trial(0, error=3e-2), trial(1, "", error=4e-7)]
    )
    assert lines[1] == "the closest is all modules kept: the output error is 4.0e-07 (budget 0)"


def test_where_only_the_whole_network_meets_the_budget_it_is_to_run_in_fp32() -> None:
    trials = [trial(0, error=3e-2), trial(1, "", error=4e-7)]
    (line, *_) = said(found("", weighing=None, smallest=True), SPACE, trials)
    assert line.startswith("nothing less than the whole network in fp32 meets the budget: run it in fp32; kept whole, ")
    (line, *_) = said(found("", weighing=None, smallest=False), SPACE, trials)
    assert line.startswith("nothing less than the whole network in fp32 was found to meet the budget")


def test_an_unfinished_search_tells_the_smallest_set_so_far() -> None:
    wanted = Wanted(max_error=2e-3, max_gradient_error=None, objective="speed", seed=0, max_trials=60)
    space = structs.replace(SPACE, wanted=wanted)
    trials = [trial(0, error=3e-2), trial(1, "", error=4e-7), trial(2, "norm", error=1e-3)]
    assert so_far(space, trials[:1]) == "1 trial made, of which none meets the budget"
    assert so_far(space, trials).startswith(
        "3 trials made; the smallest set so far that meets the budget keeps 1 module (norm)"
    )


def test_in_training_gradients_are_told_too() -> None:
    trials = [trial(0, error=3e-2, nonfinite=4), trial(2, "norm", error=1e-3, grad_rel_l2=5e-3)]
    (line, *_) = said(found("norm", max_gradient_error=1e-2), SPACE, trials)
    assert line.endswith(
        "the output error from 3.0e-02 to 1.0e-03 (budget 2.0e-03) and "
        "the gradient error from undefined (4 values not finite) to 5.0e-03 (budget 1.0e-02)"
    )


def test_a_device_on_which_fp32_is_the_faster_is_not_praised() -> None:
    slow = weighing(weighed([], 3e-3), weighed(["norm"], 2.5e-3), weighed([""], 1e-3))
    lines = said(found("norm", weighing=slow), SPACE, TRIALS)
    slower = "with these modules kept, the step is slower here than with all in fp32"
    assert f"{slower}: 2.50 times (95%: 2.50 to 2.50) as long" in lines


def test_what_spoils_times_is_said() -> None:
    busy = structs.replace(found().weighing, fitness=Fitness(other_share=0.4))
    lines = said(found("norm", weighing=busy), SPACE, TRIALS)
    assert any("other processes used 40.0% of the CPU" in line for line in lines)
    assert not any("other processes" in line for line in said(found("norm"), SPACE, TRIALS))


def test_a_ratio_of_nothing_but_one_build_has_no_interval() -> None:
    ratio = ratio_of([[2.0]], [[1.0]])
    assert (ratio.value, ratio.low, ratio.high) == (pytest.approx(2.0), None, None)
    assert math.isfinite(ratio.value)


ROOT = Path(__file__).parents[3]

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


def make():
    return Net(), torch.randn(8, 16)


def normed():
    network = Normed()
    torch.nn.init.constant_(network.norm.running_var, 4.0)
    return network, torch.randn(8, 16)


def tokens():
    return Tokens(), torch.randint(2050, 50_000, (8, 5))


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
    pasted = open("pasted.py").read()
    exec(pasted.replace("model(inputs)", "model(**inputs)") if isinstance(inputs, dict) else pasted)
print(float((output.double() - expected).norm() / expected.norm()))
"""


def lines(precision: str, *kept: str, **case: object) -> list[str]:
    return code(found(*kept), structs.replace(CASE, precision=precision, **case)).splitlines()  # type: ignore[arg-type]


def test_autocast_is_entered_after_the_modules_are_kept() -> None:
    assert lines("fp16_autocast", "norm", "head") == [
        "import torch",
        "",
        "import ampbench",
        "",
        "model.eval()",
        'ampbench.keep_fp32(model, "norm", "head")',
        'with torch.autocast("cpu", dtype=torch.float16):',
        "    output = model(inputs)  # or model(*inputs), model(**inputs)",
    ]


def test_a_pure_network_is_kept_before_it_is_moved_and_gives_back_its_own_dtype() -> None:
    assert lines("bf16_pure", "norm") == [
        "import torch",
        "from torch.utils._pytree import tree_map_only",
        "",
        "import ampbench",
        "",
        "model.eval()",
        'ampbench.keep_fp32(model, "norm", cast_back=True)',
        "model = model.to(torch.bfloat16)  # after keep_fp32: what is kept stays fp32",
        "inputs = tree_map_only(",
        "    torch.Tensor, lambda x: x.bfloat16() if x.is_floating_point() else x, inputs",
        ")",
        "output = model(inputs)  # or model(*inputs), model(**inputs)",
    ]


def test_a_network_that_trains_is_left_in_its_mode_and_has_its_targets_in_half_too() -> None:
    text = lines("fp16_pure", "norm", phase="training")
    assert "model.eval()" not in text
    assert "inputs = tree_map_only(  # targets, too" in text


def test_a_network_that_is_to_run_in_fp32_needs_no_code() -> None:
    assert lines("fp16_autocast", "") == lines("bf16_pure", "") == []


def test_nothing_to_keep_is_nothing_to_paste() -> None:
    assert code(found(), CASE) == ""
    assert code(found(found=None), CASE) == ""


def test_training_in_fp16_autocast_is_told_of_its_scaler() -> None:
    text = "\n".join(lines("fp16_autocast", "norm", phase="training", device="cuda"))
    assert 'torch.amp.GradScaler("cuda")' in text
    assert "GradScaler" not in "\n".join(lines("bf16_autocast", "norm", phase="training"))
    assert "GradScaler" not in "\n".join(lines("fp16_autocast", "norm", phase="training", scaler=False))
    compile(text, "pasted", "exec")


def test_names_that_would_be_patterns_are_escaped_and_quotes_survive() -> None:
    text = "\n".join(lines("fp16_autocast", "odd[0]*", 'a"b'))
    assert '"odd[[]0][*]"' in text
    assert "'a\"b'" in text
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
        ("make", "fp16_autocast", ["norm", "odd[0]*"]),
        ("make", "fp16_pure", ["body", "odd[0]*"]),
        ("normed", "bf16_pure", ["norm", "body.head"]),
        ("normed", "bf16_autocast", ["norm"]),
        ("tokens", "bf16_pure", ["body.norm"]),
        ("tokens", "fp16_pure", ["body"]),
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

    (tmp_path / "pasted.py").write_text(code(found(*kept), case))
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "script.py", make], capture_output=True, text=True, env=environment, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == pytest.approx(tried.output_rel_l2, rel=1e-6)
