import copy
import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.modules import module as module_hooks

from ampbench.studies.headroom import RangesAsked, predicted_and_seen
from ampbench.studies.headroom_measure import measure_ranges
from ampbench.trace.ranges import SMALL, Counts, count_magnitudes, count_together, normalises_together, watch_ranges
from ampbench.workload import Workload
from tests.stored_runs import make_case
from tests.studies.working import at_work
from tests.traced_programs import conv_net, encoder


def rows(seen, what):
    return {(row.module, row.name): row for row in seen.magnitudes if row.what == what}


def training(model, x, optimizer, batches=2):
    torch.manual_seed(1)
    outputs = []
    for _ in range(batches):
        optimizer.zero_grad()
        out = model(x)
        out.square().mean().backward()
        outputs += [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
        optimizer.step()
    return [*outputs, *model.state_dict().values()]


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_inputs_outputs_gradients_weights_and_updates_of_a_linear():
    lin, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    model = torch.nn.Sequential(lin)
    weight, optimizer = lin.weight.detach().clone(), torch.optim.SGD(model.parameters(), lr=0.5)
    with watch_ranges(model, optimizer) as seen:
        out = model(x)
        out.sum().backward()
        optimizer.step()
    assert rows(seen, "input")["0", ""].largest == x.abs().max()
    assert rows(seen, "activation")["0", ""].largest == out.abs().max()
    assert rows(seen, "gradient")["0", ""].largest == 1.0
    assert rows(seen, "gradient")["0", "0.weight"].largest == lin.weight.grad.abs().max()
    assert rows(seen, "weight")["0", "0.weight"].largest == weight.abs().max()
    assert rows(seen, "update")["0", "0.weight"].largest == (weight - lin.weight).abs().max()
    assert {row.kind for row in seen.magnitudes} == {"Linear"}
    assert seen.nonfinite_in_fp32 is None


@pytest.mark.parametrize("build", [conv_net, encoder])
def test_training_gives_the_same_bits_watched_and_unwatched(build):
    torch.manual_seed(0)
    model = build()
    x = torch.randn(4, 3, 8, 8) if build is conv_net else torch.randn(2, 5, 16)
    other = copy.deepcopy(model)
    plain = training(model, x, sgd(model))
    optimizer = sgd(other)
    with watch_ranges(other, optimizer):
        watched = training(other, x, optimizer)
    assert all(torch.equal(left, right) for left, right in zip(plain, watched, strict=True))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference_takes_the_same_path_and_gives_the_same_bits(mode):
    model, x = encoder().eval(), torch.randn(2, 5, 16)
    with mode():
        plain = model(x)
        with watch_ranges(model) as seen:
            assert torch.equal(model(x), plain)
    assert ("layers.0", "") in rows(seen, "activation")  # fused: no module within it ran
    assert ("layers.0.linear1", "") not in rows(seen, "activation")


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_what_the_program_changes_between_two_modules_is_seen(mode):
    class Adds(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = torch.nn.Identity(), torch.nn.Identity()

        def forward(self, x):
            out = self.one(x)
            out += 100.0
            return self.two(out)

    with mode(), watch_ranges(model := Adds()) as seen:
        model(torch.ones(3))
    assert rows(seen, "activation")["one", ""].largest == 1.0
    assert rows(seen, "input")["two", ""].largest == 101.0


def test_tuples_dicts_integers_and_keywords():
    class Odd(torch.nn.Module):
        def forward(self, x, *, scale):
            return (x * scale, {"twice": x * 2, "places": torch.arange(3)}, None, "text")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.odd, self.table = Odd(), torch.nn.Embedding(3, 2)

        def forward(self, places):
            return self.odd(self.table(places), scale=torch.tensor(3.0))

    with watch_ranges(model := Net()) as seen:
        model(torch.tensor([0, 1]))
    assert rows(seen, "activation")["odd", ""].elements == 8
    assert rows(seen, "input")["odd", ""].elements == 5
    assert ("table", "") not in rows(seen, "input")
    assert ("", "") not in rows(seen, "activation")


def test_updates_that_rounding_would_swallow_are_counted():
    model = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 1.0]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with watch_ranges(model, optimizer) as seen:
        model(torch.tensor([[-1e-4, -2e-3]])).sum().backward()
        optimizer.step()
    # 1 + 1e-4 stays 1 in fp16, whose next number is 1 + 2**-10; in bf16 1 + 2e-3 does, too.
    found = {row.dtype: (row.moved, row.swallowed) for row in seen.swallowed}
    assert found == {"fp16": (2, 1), "bf16": (2, 2)}
    assert (torch.tensor(1 + 1e-4).half() == 1).item()


def test_a_weight_between_two_numbers_of_a_dtype_counts_as_the_one_that_would_be_stored():
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1 + 2**-8 - 2**-20)  # just below where bf16 rounds up
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with watch_ranges(model, optimizer) as seen:
        model(torch.tensor([[-(2.0**-18)]])).sum().backward()
        optimizer.step()
    assert model.weight.bfloat16().item() == 1 + 2**-7  # the fp32 weight crosses over
    stored = torch.nn.Parameter(torch.tensor([1 + 2**-8 - 2**-20]).bfloat16())
    stored.grad = torch.tensor([-(2.0**-18)]).bfloat16()
    torch.optim.SGD([stored], lr=1.0).step()
    assert stored.item() == 1  # what is stored does not
    assert {row.dtype: row.swallowed for row in seen.swallowed}["bf16"] == 1


def test_updates_of_parameters_of_any_size_dtype_and_layout_are_counted_at_each_step():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one = torch.nn.Parameter(torch.randn(3))
            self.large = torch.nn.Parameter(torch.randn(700_000) * 0.01)
            self.fp64 = torch.nn.Parameter(torch.randn(5, dtype=torch.float64))
            self.late = torch.nn.Parameter(torch.randn(4, 6).t())
            self.gaps = torch.nn.Parameter(torch.randn(4, 6)[:, ::2])

    def differing(first, second):
        return int((first != second).sum())

    torch.manual_seed(0)
    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    expected = {name: (Counts(), {"fp16": 0, "bf16": 0}) for name, _ in model.named_parameters()}
    with watch_ranges(model, optimizer) as seen:
        for step in range(3):
            for name, parameter in model.named_parameters():
                parameter.grad = torch.randn_like(parameter) if name != "late" or step else None
            before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
            optimizer.step()
            for name, parameter in model.named_parameters():
                if parameter.grad is None:
                    continue
                counts, swallowed = expected[name]
                counts.add(count_magnitudes(before[name] - parameter))
                moved = differing(before[name], parameter)
                for short, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
                    stored = before[name].to(dtype)
                    swallowed[short] += moved - differing(stored, (stored + (parameter - before[name])).to(dtype))
    for (_, name), row in rows(seen, "update").items():
        counts = expected[name][0]
        found = {row.lowest + place: n for place, n in enumerate(row.counts) if n}
        assert (row.elements, row.zeros, row.largest, found) == (
            counts.elements, counts.zeros, counts.largest, counts.exponents,
        )  # fmt: skip
    assert {(row.parameter, row.dtype): row.swallowed for row in seen.swallowed} == {
        (name, dtype): lost for name, (_, swallowed) in expected.items() for dtype, lost in swallowed.items()
    }


def test_the_user_s_hooks_still_run_and_ours_are_gone_afterwards():
    model, heard = torch.nn.Sequential(torch.nn.Linear(2, 2)), []
    model[0].register_forward_hook(lambda *_: heard.append("hook"))
    before = [len(module_hooks._global_forward_hooks), len(module_hooks._global_forward_pre_hooks)]
    optimizer = sgd(model)

    def broken():
        with watch_ranges(model, optimizer):
            model(torch.randn(2, 2))
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert heard == ["hook"]
    assert [len(module_hooks._global_forward_hooks), len(module_hooks._global_forward_pre_hooks)] == before
    assert not optimizer._optimizer_step_pre_hooks
    assert not model[0].weight._backward_hooks


def plain(values):
    finite = [abs(value) for value in values if math.isfinite(value)]
    return Counts(
        elements=len(values),
        zeros=sum(value == 0 for value in finite),
        nonfinite=len(values) - len(finite),
        largest=max(finite, default=None),
        exponents=Counter(math.frexp(value)[1] - 1 for value in finite if value),
        powers=Counter(
            math.frexp(value)[1] - 1 for value in finite if math.frexp(value)[0] == 0.5 and value <= 2.0**SMALL
        ),
    )


@given(st.lists(st.floats(width=32), max_size=50))
@settings(max_examples=200)
def test_fp32_values_are_counted_one_by_one(values):
    assert count_magnitudes(torch.tensor(values, dtype=torch.float32)) == plain(values)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_bit_pattern_of_a_half_is_counted(dtype):
    tensor = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    assert count_magnitudes(tensor) == plain(tensor.tolist())


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.transpose(0, 3),
        lambda x: x[:, ::2],
        lambda x: x[0, 0, 0, 0].expand(5, 3),
        lambda x: x[:, :0],
    ],
)
def test_strides_do_not_matter(change):
    tensor = change(torch.randn(2, 4, 5, 6, requires_grad=True))
    assert count_magnitudes(tensor) == plain(tensor.flatten().tolist())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("count", [10, 4_000, 250_000])
@pytest.mark.parametrize("zero", [0.0, 1.0])
def test_powers_of_two_are_counted_apart_where_values_are_small(dtype, count, zero):
    tensor = torch.randn(count, generator=torch.Generator().manual_seed(0)).to(dtype) * 2.0**-25
    tensor[:8] = torch.tensor([2.0**-24, 2.0**-25, -(2.0**-25), 2.0**-26, 2.0**-126, -(2.0**-127), 2.0**-149, zero])
    tensor[8], tensor[9] = math.inf, math.nan
    tensor[17::97] = 2.0**-30
    found = count_magnitudes(tensor)
    assert found == plain(tensor.tolist())
    assert found.powers[-25] == 2


def test_what_a_sparse_tensor_does_not_store_is_zero():
    tensor = torch.eye(4).to_sparse()
    assert count_magnitudes(tensor) == plain(torch.eye(4).flatten().tolist())
    rows = torch.sparse_coo_tensor([[1, 1]], torch.ones(2, 3), (4, 3), check_invariants=True)
    assert count_magnitudes(rows) == plain(rows.to_dense().flatten().tolist())
    assert count_magnitudes(torch.zeros(3).to_sparse()) == plain([0.0] * 3)


class ForImages(nn.LayerNorm):
    """Normalises the channels of images."""


TINY = 2.0**-30
CHANNEL, ROW = (slice(None), 1), 1
CASES = [
    (nn.BatchNorm1d(4), (3, 4), CHANNEL), (nn.BatchNorm2d(4), (3, 4, 2, 2), CHANNEL),
    (nn.InstanceNorm1d(4), (3, 4, 5), (2, 1)), (nn.InstanceNorm1d(4), (4, 5), ROW),
    (nn.InstanceNorm2d(4), (3, 4, 5, 5), (2, 1)), (nn.GroupNorm(2, 4), (3, 4, 5), (1, slice(0, 2))),
    (nn.LayerNorm(4), (3, 2, 4), (1, 1)), (nn.LayerNorm([2, 4]), (3, 2, 4), ROW),
    (ForImages(3), (2, 3, 5, 5), (0, slice(None), 1, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("module", "shape", "place"), CASES)
def test_what_lies_in_a_channel_or_row_of_small_values_is_counted(module, shape, place):
    x = torch.ones(shape)
    assert not count_together(module, x)
    x[place] = TINY
    assert count_together(module, x) == {-30: x[place].numel()}
    x[place] = torch.arange(x[place].numel()).view(x[place].shape) * 2.0**-40
    x[place] = torch.where(x[place] == 0, 0.0, TINY)
    assert count_together(module, x) == {-30: x[place].numel()}
    if x[place].numel() > 1:
        x[place] = torch.where(torch.arange(x[place].numel()).view(x[place].shape) == 1, 1.0, TINY)
        assert not count_together(module, x)


def test_those_that_remember_their_statistics_normalise_value_by_value():
    assert normalises_together(nn.BatchNorm2d(3))
    assert not normalises_together(nn.BatchNorm2d(3).eval())
    assert normalises_together(nn.BatchNorm2d(3, track_running_stats=False).eval())
    assert normalises_together(nn.LayerNorm(3).eval())
    assert not normalises_together(nn.RMSNorm(3))
    assert not normalises_together(nn.Linear(3, 3))


NAMES = ("resnet18", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x0_5", "mnasnet0_5")


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
