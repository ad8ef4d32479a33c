from pathlib import Path

import pytest
from msgspec import structs

from ampbench.errors import UnknownNameError, UsageError
from ampbench.store import read_run
from ampbench.workloads import index
from ampbench.workloads.index import WORKLOADS, resolve_parameters

ROOT = Path(__file__).parents[2]


def test_every_spec_gives_every_preset_the_same_parameters_with_the_batch_size_last():
    for spec in WORKLOADS.values():
        assert list(spec.preset("tiny")) == list(spec.preset("small")) == list(spec.preset("large"))
        assert list(spec.preset("tiny"))[-1] == "batch_size"
        assert {*spec.suite} <= {"inference", "training"}


def test_every_preset_satisfies_its_own_limits_and_multiples():
    for spec in WORKLOADS.values():
        for preset in index.PRESETS:
            assert resolve_parameters(spec, preset, spec.preset(preset)) == dict(spec.preset(preset))


def test_an_unknown_parameter_is_answered_with_the_nearest_names():
    with pytest.raises(UnknownNameError, match=r"unknown parameter of resnet18 'batch': did you mean batch_size\?"):
        resolve_parameters(WORKLOADS["resnet18"], "tiny", {"batch": 4})


@pytest.mark.parametrize("value", [1.5, "8", True])
def test_a_value_that_is_no_whole_number_is_refused(value):
    with pytest.raises(UsageError, match=r"mlp\.width=.*: must be a whole number from 1 to 65536"):
        resolve_parameters(WORKLOADS["mlp"], "tiny", {"width": value})


@pytest.mark.parametrize(
    ("name", "overrides", "said"),
    [
        (
            "transformer_encoder",
            {"width": 100, "heads": 3},
            r"transformer_encoder.width=100: must be a multiple of 3 \(heads=3\)",
        ),
        ("decoder_lm", {"width": 36, "heads": 4}, r"decoder_lm.width=36: must be a multiple of 8 \(heads=4 x 2\)"),
        ("roi_head", {"image": 100}, r"roi_head.image=100: must be a multiple of 16$"),
    ],
)
def test_a_violated_divisibility_is_refused_with_what_it_should_be(name, overrides, said):
    with pytest.raises(UsageError, match=said):
        resolve_parameters(WORKLOADS[name], "tiny", overrides)


def test_stored_cases_of_built_in_workloads_have_the_ids_that_they_have_now():
    stored = read_run(ROOT / "results/runs/20261121T031846Z-vm-ecda2f.jsonl")
    cases = [case for case in stored.cases.values() if case.workload == "transformer_encoder"]
    assert cases
    for case in cases:
        parameters = resolve_parameters(WORKLOADS[case.workload], "small")
        batch_size = parameters.pop("batch_size")
        now = structs.replace(case, parameters=parameters, batch_size=batch_size)
        assert stored.cases[now.case_id] is case
