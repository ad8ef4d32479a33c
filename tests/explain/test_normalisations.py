import pytest
import torch
from torch import nn

from ampbench.explain.ranges import count_together, normalises_together


class ForImages(nn.LayerNorm):
    """Normalises the channels of images."""


SMALL = 2.0**-30
CHANNEL, ROW = (slice(None), 1), 1
CASES = [
    (nn.BatchNorm1d(4), (3, 4), CHANNEL),
    (nn.BatchNorm2d(4), (3, 4, 2, 2), CHANNEL),
    (nn.InstanceNorm1d(4), (3, 4, 5), (2, 1)),
    (nn.InstanceNorm1d(4), (4, 5), ROW),
    (nn.InstanceNorm2d(4), (3, 4, 5, 5), (2, 1)),
    (nn.GroupNorm(2, 4), (3, 4, 5), (1, slice(0, 2))),
    (nn.LayerNorm(4), (3, 2, 4), (1, 1)),
    (nn.LayerNorm([2, 4]), (3, 2, 4), ROW),
    (ForImages(3), (2, 3, 5, 5), (0, slice(None), 1, 2)),
]


@pytest.mark.parametrize(("module", "shape", "place"), CASES)
def test_what_lies_in_a_channel_or_row_of_small_values_is_counted(module, shape, place):
    x = torch.ones(shape)
    assert not count_together(module, x)
    x[place] = SMALL
    assert count_together(module, x) == {-30: x[place].numel()}
    x[place] = torch.arange(x[place].numel()).view(x[place].shape) * 2.0**-40
    x[place] = torch.where(x[place] == 0, 0.0, SMALL)
    assert count_together(module, x) == {-30: x[place].numel()}
    if x[place].numel() > 1:
        x[place] = torch.where(torch.arange(x[place].numel()).view(x[place].shape) == 1, 1.0, SMALL)
        assert not count_together(module, x)


def test_those_that_remember_their_statistics_normalise_value_by_value():
    assert normalises_together(nn.BatchNorm2d(3))
    assert not normalises_together(nn.BatchNorm2d(3).eval())
    assert normalises_together(nn.BatchNorm2d(3, track_running_stats=False).eval())
    assert normalises_together(nn.LayerNorm(3).eval())
    assert not normalises_together(nn.RMSNorm(3))
    assert not normalises_together(nn.Linear(3, 3))
