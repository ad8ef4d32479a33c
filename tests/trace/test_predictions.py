"""Predictions from an fp32 run against what each module then does in fp16, on six networks, half of them rescaled."""

from collections import Counter

import pytest
import torch

from ampbench.studies.headroom import (
    RangesAsked,
    predicted_and_seen,
)
from ampbench.studies.headroom_measure import measure_ranges
from ampbench.workload import Workload
from tests.stored_runs import make_case
from tests.studies.working import at_work

NAMES = [
    *("resnet18", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x0_5", "mnasnet0_5"),
]


def rescale(model):
    """Make a layer a third down the network too large, and one two thirds down too small, by random factors."""
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d | torch.nn.Linear)]
    for layer, power in ((layers[len(layers) // 3], 4.0), (layers[2 * len(layers) // 3], -7.0)):
        factor = 10.0 ** (power + 2 * torch.rand(()).item())
        for parameter in layer.parameters():
            parameter.data.mul_(factor)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_predictions_of_passes_in_training_and_inference_are_precise_and_complete():
    models = pytest.importorskip("torchvision.models")
    found = Counter()
    for place, name in enumerate(NAMES):
        torch.manual_seed(place)
        model = models.get_model(name, weights=None)
        if place % 2:
            rescale(model)
        workload = Workload(
            module=model, inputs=torch.randn(2, 3, 64, 64), loss=lambda output: output.float().square().mean()
        )
        for phase in ("training", "inference"):
            passed = measure_ranges(
                at_work(workload, make_case(workload="net", family="vision", phase=phase, batch_size=2)),
                RangesAsked(precisions=["fp16_autocast", "fp16_pure"]),
            )
            for low in passed.low_runs:
                for row in predicted_and_seen(passed, low):
                    for event, happened in row.events.items():
                        if happened.seen is not None:
                            found[low.precision, event, bool(happened.predicted), happened.seen] += 1
    for key in {(precision, event) for precision, event, *_ in found}:
        right = found[*key, True, True]
        assert right > 20, key
        assert right >= 0.95 * (right + found[*key, True, False]), (key, found)
        assert right >= 0.95 * (right + found[*key, False, True]), (key, found)
