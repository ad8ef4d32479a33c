"""Every module's output has a realistic size, with running and with batch statistics, for every preset and seed."""

import pytest
from built_workloads import HERE, build, rms_by_module

SMALLEST, LARGEST = 0.05, 20.0
SHORTER = {
    "transformer_encoder": {"sequence_length": 128},
    "decoder_lm": {"sequence_length": 256},
}


def check(name: str, preset: str, seed: int, **overrides: int) -> None:
    workload = build(name, preset, seed, **overrides)
    for train in (False, True):
        outside = {
            module: rms
            for module, rms in rms_by_module(workload, train=train).items()
            if not SMALLEST <= rms <= LARGEST
        }
        assert not outside, f"train={train}"


@pytest.mark.parametrize(("preset", "seed"), [("tiny", 0), ("tiny", 1), ("small", 0)])
@pytest.mark.parametrize("name", HERE)
def test_every_output_of_every_module_keeps_its_size(name, preset, seed):
    check(name, preset, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_every_output_keeps_its_size_at_preset_large_with_one_example_and_shorter_sequences(name):
    check(name, "large", 0, batch_size=1, **SHORTER.get(name, {}))


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("mlp", {"depth": 32}),
        ("transformer_encoder", {"depth": 24}),
        ("decoder_lm", {"depth": 24}),
    ],
)
def test_outputs_keep_their_size_in_networks_deeper_than_any_preset(name, overrides):
    check(name, "tiny", 0, **overrides)
