"""Policies: what a gate's file may hold, what it means for a case, how mistakes are refused."""

import datetime
from pathlib import Path

import pytest

from ampbench.core.metrics import DRIFT, GATED, MEAN
from ampbench.errors import UsageError
from ampbench.judge.gate import METRIC_KINDS, Policy, kind_of, read_policy
from ampbench.records.changes import OUTCOME
from tests.stored_runs import make_case

TODAY = datetime.date(2026, 1, 31)
EVERYTHING = """
only = ["accuracy", "time"]
min_decided = 0.75
[thresholds]
time = "5%"
memory = 0.01
output_rel_l2 = 0.1
[[rule]]
cases = "linear_chain"
thresholds = { time = "10%" }
[[rule]]
cases = "bf16 and not training"
thresholds = { seconds_median = "20%" }
[[ignore]]
cases = "mlp and fp16"
metrics = ["time", "output_rel_l2"]
until = 2026-12-31
reason = "the driver emulates fp16"
"""
IGNORE = "[[ignore]]\ncases = 'mlp'\nreason = 'known'\nuntil = 2026-12-31\n"


def read(text: str, folder: Path) -> Policy:
    path = folder / "gate.toml"
    path.write_text(text)
    return read_policy(path, TODAY)


def refused(text: str, folder: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read(text, folder)
    message = str(caught.value)
    assert message.startswith(f"{folder / 'gate.toml'}: ")
    assert "\n" not in message
    return message.removeprefix(f"{folder / 'gate.toml'}: ")


def test_every_key_is_read(tmp_path: Path) -> None:
    policy = read(EVERYTHING, tmp_path)
    assert (policy.only, policy.min_decided) == (("time", "accuracy"), 0.75)
    assert dict(policy.thresholds) == {"time": 0.05, "memory": 0.01, "output_rel_l2": 0.1}
    assert [rule.thresholds for rule in policy.rules] == [{"time": 0.1}, {"seconds_median": 0.2}]
    assert policy.ignores[0].until == datetime.date(2026, 12, 31)


def test_the_last_rule_that_says_something_of_a_metric_wins(tmp_path: Path) -> None:
    policy = read(EVERYTHING, tmp_path)
    conv = {"workload": "resnet18", "family": "conv"}
    bf16, fp32 = "bf16_autocast", "fp32"
    assert policy.threshold_of("seconds_median", make_case(fp32, **conv)) == 0.05
    assert policy.threshold_of("seconds_median", make_case(fp32)) == 0.1
    assert policy.threshold_of("seconds_median", make_case(bf16)) == 0.2
    assert policy.threshold_of("seconds_median", make_case(bf16, phase="training")) == 0.1
    assert policy.threshold_of("peak_memory_bytes", make_case(bf16)) == 0.01


def test_an_ignore_covers_its_cases_and_metrics_only(tmp_path: Path) -> None:
    policy = read(EVERYTHING, tmp_path)
    covered = "mlp/b8/fp16_pure/cpu/inference/eager/in-fp16"
    assert policy.ignore_of("seconds_median", covered) is policy.ignores[0]
    assert policy.ignore_of("output_rel_l2", covered) is policy.ignores[0]
    assert policy.ignore_of("grad_rel_l2", covered) is None
    assert policy.ignore_of(OUTCOME, covered) is None
    assert policy.ignore_of("seconds_median", covered.replace("fp16", "bf16")) is None


def test_an_ignore_holds_through_its_last_day(tmp_path: Path) -> None:
    assert read(IGNORE.replace("2026-12-31", "2026-01-31"), tmp_path).ignores
    message = refused(IGNORE + IGNORE.replace("2026-12-31", "2026-01-30"), tmp_path)
    assert message == "an ignore expired on 2026-01-30 (known): remove it or renew it"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ancor = 'a'", "Object contains unknown field `ancor`"),
        ("[[rule]]\nfamly = 'conv'", "Object contains unknown field `famly` - at `$.rule[0]`"),
        ("only = ['tme']", "Expected `str` matching regex '^(time|memory|accuracy|rules)"),
        ("only = []", "Expected `array` of length >= 1 - at `$.only`"),
        ("min_decided = 1", '1 may mean 1% or 100%: write it in percent, as in "5%"'),
        ("min_decided = true", "Expected `float | str`, got `bool` - at `$.min_decided`"),
        ("[thresholds]\ntime = -0.1", 'must be a share such as 0.05 or "5%", 0 or more, not -0.1'),
        ("[[rule]]\ncases = 'mlp'\nthresholds = {}", "Expected `object` of length >= 1 - at `$.rule[0].thresholds`"),
        (
            "[[rule]]\ncases = 'mlp and'\nthresholds = { time = 0.1 }",
            "cases = 'mlp and' is not an expression of names joined by and, or, not, ( and ) - at `$.rule[0]`",
        ),
        (IGNORE.replace("'mlp'", "'mlp or (a)(b)'"), "cases = 'mlp or (a)(b)' is not an expression"),
        (IGNORE.replace("reason = 'known'", ""), "Object missing required field `reason` - at `$.ignore[0]`"),
        (IGNORE.replace("2026-12-31", "'tomorrow'"), "Invalid RFC3339 encoded date - at `$.ignore[0].until`"),
        ("only = [", "not valid TOML: "),
    ],
)
def test_a_mistake_is_one_line_with_file_and_key(text: str, message: str, tmp_path: Path) -> None:
    assert refused(text, tmp_path).startswith(message)


def test_every_gated_metric_and_kind_can_have_a_threshold_and_be_ignored(tmp_path: Path) -> None:
    for name in (*METRIC_KINDS, *GATED):
        policy = read(f"[thresholds]\n{name} = 0.5\n{IGNORE}metrics = ['{name}']\n", tmp_path)
        kinds = {metric: metric if metric in (DRIFT, MEAN) else kind_of(metric) for metric in GATED}
        metrics = [metric for metric in GATED if name in (metric, kinds[metric])]
        assert metrics
        for metric in metrics:
            assert policy.threshold_of(metric, make_case()) == 0.5
            assert policy.ignore_of(metric, "mlp/fp32") is not None


def test_a_threshold_of_time_is_not_the_means_whose_own_is_said_by_name_and_an_ignore_of_time_covers_both(
    tmp_path: Path,
) -> None:
    policy = read(f"[thresholds]\ntime = '1%'\n{IGNORE}metrics = ['time']\n", tmp_path)
    assert policy.threshold_of(MEAN, make_case()) is None  # and so the larger of its default and the time's
    assert policy.ignore_of(MEAN, "mlp/fp32") is not None
    assert read("[thresholds]\nseconds_mean = '10%'", tmp_path).threshold_of(MEAN, make_case()) == 0.1


def test_rules_can_be_left_out_and_ignored_by_op_and_device_but_have_no_threshold(tmp_path: Path) -> None:
    assert read("only = ['rules']", tmp_path).only == ("rules",)
    policy = read(IGNORE.replace("'mlp'", "'rms_norm and cuda'") + "metrics = ['rules']\n", tmp_path)
    assert policy.ignore_of("rules", "rms_norm/cuda") is policy.ignores[0]
    assert policy.ignore_of("rules", "rms_norm/xpu") is None
    assert policy.ignore_of("seconds_median", "rms_norm/cuda") is None
    assert list(policy.idle([], ["rms_norm/cuda"])) == []
    assert refused("[thresholds]\nrules = 0.1", tmp_path).startswith("Expected `str` matching regex")
