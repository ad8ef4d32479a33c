import math

import numpy as np
import pytest
import torch

from ampbench.measure import data
from ampbench.measure.data import CHUNK_WORDS, Generator


def generator(seed: int = 0, **parameters: int) -> Generator:
    return Generator("example", 1, {"width": 4, **parameters}, seed)


def test_values_are_the_raw_stream_of_philox_however_many_are_drawn():
    """The first values, from NumPy's raw words by the documented arithmetic."""
    drawn = generator().uniform("weight", (2 * CHUNK_WORDS + 3,), rms=2.0, mean=0.5)
    words = np.concatenate(list(generator()._words("weight", CHUNK_WORDS + 2)))
    steps = (words.view(np.uint32)[: len(drawn)] >> 8).astype(np.float32)
    expected = steps * np.float32(2.0**-23 * math.sqrt(3) * 2.0) + np.float32(0.5 - math.sqrt(3) * 2.0)
    assert torch.equal(drawn, torch.from_numpy(expected))


def test_the_first_values_are_those_recorded_once():
    assert generator().integers("x", (4,), 1000).tolist() == [749, 283, 532, 600]
    assert generator().uniform("x", (4,)).tolist() == [
        1.19379460811615,
        -0.7019975185394287,
        1.4636276960372925,
        -0.9749233722686768,
    ]


@pytest.mark.parametrize("count", [0, 1, 7, 2 * CHUNK_WORDS - 1, 2 * CHUNK_WORDS, 2 * CHUNK_WORDS + 1])
def test_fewer_values_are_a_prefix_of_more(count):
    assert torch.equal(generator().uniform("x", (count,)), generator().uniform("x", (3 * CHUNK_WORDS,))[:count])
    assert torch.equal(
        generator().integers("x", (count,), 99), generator().integers("x", (3 * CHUNK_WORDS,), 99)[:count]
    )


def test_the_batch_size_is_not_part_of_the_key_and_everything_else_is():
    first = generator().uniform("x", (9,))
    assert torch.equal(first, generator(batch_size=7).uniform("x", (9,)))
    others = [
        generator(seed=1),
        generator(width=5),
        Generator("other", 1, {"width": 4}, 0),
        Generator("example", 2, {"width": 4}, 0),
    ]
    assert not any(torch.equal(first, other.uniform("x", (9,))) for other in others)
    assert not torch.equal(first, generator().uniform("y", (9,)))


def test_uniform_values_have_the_mean_and_the_deviation_asked_for():
    values = generator().uniform("x", (200, 1000), rms=3.0, mean=-1.0).double()
    assert values.mean().item() == pytest.approx(-1.0, abs=0.03)
    assert values.std().item() == pytest.approx(3.0, rel=0.01)
    assert values.dtype == torch.float64


def test_integers_cover_their_range():
    values = generator().integers("x", (5000,), 10)
    assert values.dtype == torch.int64
    assert values.unique().tolist() == list(range(10))


def test_filling_gives_a_module_on_the_meta_device_storage_and_values():
    with torch.device("meta"):
        module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    generator().fill(
        module, lambda name, tensor: generator().uniform(name, tuple(tensor.shape)) if name == "0.weight" else 5
    )
    assert module[0].weight.device.type == "cpu"
    assert module[0].weight.requires_grad
    assert module[0].bias.tolist() == [5, 5]
    assert module[1].num_batches_tracked.item() == 5


def test_a_digest_changes_with_a_bit_a_name_a_shape_and_a_dtype():
    tensor = torch.arange(6, dtype=torch.float32)
    changed = tensor.clone()
    changed[5] = torch.nextafter(changed[5], torch.tensor(9.0))
    variants = [("a", tensor), ("a", changed), ("b", tensor), ("a", tensor.view(2, 3)), ("a", tensor.view(torch.int32))]
    assert len({data.digest(iter([variant])) for variant in variants}) == 5


def test_a_digest_does_not_depend_on_the_memory_format():
    images = generator().uniform("x", (2, 3, 4, 4))
    other = images.contiguous(memory_format=torch.channels_last)
    assert data.digest(iter([("x", images)])) == data.digest(iter([("x", other)]))
