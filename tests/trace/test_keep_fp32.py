import copy
import pickle

import pytest
import torch

import ampbench
from ampbench.errors import UnknownNameError, UsageError
from ampbench.trace.keep_fp32 import is_kept

BF16 = torch.bfloat16


def autocast(dtype=BF16):
    return torch.autocast("cpu", dtype=dtype)


class Dtypes(torch.nn.Module):
    """Remembers what came in, and multiplies by its weight, so that autocast has something to do."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4, 4), 1.0 / 3))
        self.register_buffer("scale", torch.full((4,), 1.0 / 3))
        self.seen = None

    def forward(self, batch, *rest, **named):
        self.seen = batch.dtype
        out = batch @ self.weight
        return out * self.scale.to(out.dtype)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        self.head = Dtypes()

    def forward(self, batch):
        return self.head(self.body(batch))


def plain_product(left, right):
    return left @ right


def test_a_block_runs_in_fp32_and_autocast_goes_on_after_it():
    a = torch.randn(4, 4)
    with autocast():
        with ampbench.keep_fp32():
            assert (a @ a).dtype is torch.float32
            with ampbench.keep_fp32():
                assert (a @ a).dtype is torch.float32
            assert (a @ a).dtype is torch.float32
        assert (a @ a).dtype is BF16


def test_a_function_gets_fp32_unrounded_and_half_inputs_converted():
    seen = []

    @ampbench.keep_fp32
    def watched(box, features, count):
        seen.extend([box, features.dtype, count.dtype])
        return features @ features

    box = torch.tensor([1023.7, 2049.3])
    with autocast():
        out = watched(box, torch.ones(2, 2, dtype=BF16), count=torch.tensor(3))
    assert seen[0] is box
    assert seen[1:] == [torch.float32, torch.int64]
    assert out.dtype is torch.float32


@pytest.mark.parametrize("inside", [True, False])
def test_outputs_go_back_to_the_dtype_around_where_asked(inside):
    back = ampbench.keep_fp32(plain_product, cast_back=True)
    a = torch.randn(4, 4)
    if inside:
        with autocast():
            assert back(a, a).dtype is BF16
    else:
        assert back(a, a).dtype is torch.float32
        assert back(a.half(), a.half()).dtype is torch.float16


def test_one_instance_is_kept_and_others_of_its_class_are_not():
    kept, other = ampbench.keep_fp32(Dtypes()), Dtypes()
    with autocast():
        assert kept(torch.randn(2, 4)).dtype is torch.float32
        assert other(torch.randn(2, 4)).dtype is BF16
    assert kept(torch.ones(2, 4, dtype=BF16)).dtype is torch.float32


def test_a_class_is_kept_for_instances_made_before_and_after():
    class Mine(Dtypes):
        pass

    before = Mine()
    assert ampbench.keep_fp32(Mine) is Mine
    with autocast():
        assert before(torch.randn(2, 4)).dtype is torch.float32
        assert Mine()(torch.randn(2, 4)).dtype is torch.float32
        assert Dtypes()(torch.randn(2, 4)).dtype is BF16
    half = Mine().half()
    assert half.weight.dtype is torch.float32
    ampbench.release_fp32(Mine)
    with autocast():
        assert before(torch.randn(2, 4)).dtype is BF16
    assert "forward" not in Mine.__dict__
    assert Mine().half().weight.dtype is torch.float16


def test_submodules_are_chosen_by_name_and_by_pattern():
    net = Net()
    assert ampbench.keep_fp32(net, "head", "body.*") is net
    assert [name for name, module in net.named_modules() if is_kept(module)] == ["body.0", "body.1", "head"]
    ampbench.release_fp32(net, "body.0")
    assert [name for name, module in net.named_modules() if is_kept(module)] == ["body.1", "head"]


def test_a_name_that_matches_nothing_names_the_nearest():
    with pytest.raises(UnknownNameError, match="head"):
        ampbench.keep_fp32(Net(), "haed")


@pytest.mark.parametrize(("target", "names"), [(3, ()), (int, ()), (torch.nn.Module, ()), (plain_product, ("x",))])
def test_a_target_that_can_have_no_island_is_refused(target, names):
    with pytest.raises(UsageError):
        ampbench.keep_fp32(target, *names)


@pytest.mark.parametrize("move", [lambda net: net.half(), lambda net: net.to(BF16), lambda net: net.to("meta", BF16)])
def test_weights_of_an_island_stay_fp32_and_unrounded_in_a_pure_half_model(move):
    net = Net()
    ampbench.keep_fp32(net, "head")
    moved = move(net)
    assert moved.body[0].weight.dtype in (torch.float16, BF16)
    assert moved.head.weight.dtype is torch.float32
    assert moved.head.scale.dtype is torch.float32
    if moved.head.weight.device.type == "cpu":
        assert moved.head.weight[0, 0].item() == torch.tensor(1.0 / 3).item()
        out = moved(torch.randn(2, 4).to(moved.body[0].weight.dtype))
        assert out.dtype is torch.float32


def test_an_island_made_after_the_move_to_half_has_fp32_weights_too():
    net = Net().half()
    ampbench.keep_fp32(net, "head", cast_back=True)
    assert net.head.weight.dtype is torch.float32
    assert net(torch.randn(2, 4).half()).dtype is torch.float16
    net.double()
    assert net.head.weight.dtype is torch.float64


@pytest.mark.parametrize("again", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_a_copied_or_pickled_module_keeps_its_island_and_its_own_weights(again):
    net = Net()
    ampbench.keep_fp32(net, "head")
    twin = again(net)
    with torch.no_grad():
        net.head.weight.zero_()
    with autocast():
        out = twin(torch.randn(2, 4))
    assert out.dtype is torch.float32
    assert out.abs().sum() > 0
    assert twin.half().head.weight.dtype is torch.float32


@pytest.mark.parametrize("pure", [False, True])
def test_an_island_compiles_without_a_graph_break(pure):
    net = Net()
    ampbench.keep_fp32(net, "head", cast_back=True)
    batch = torch.randn(2, 4)
    if pure:
        net, batch = net.to(BF16), batch.to(BF16)
    torch.compiler.reset()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    with torch.no_grad(), torch.autocast("cpu", dtype=BF16, enabled=not pure):
        expected, out = net(batch), compiled(batch)
    assert out.dtype is BF16
    assert torch.equal(out, expected)


@pytest.mark.parametrize("order", ["keep, move", "move, keep", "keep, move twice"])
def test_an_embedding_gives_the_half_that_its_model_was_moved_to(order):
    net = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.Linear(4, 4))
    if order == "move, keep":
        net.to(BF16)
    ampbench.keep_fp32(net, "0", cast_back=True)
    if order == "keep, move twice":
        net.half()
    net.to(BF16)
    assert net[0].weight.dtype is torch.float32
    assert net(torch.arange(5)).dtype is BF16
    for same in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), net.to("cpu"), net.share_memory()):
        assert same(torch.arange(5)).dtype is BF16
    assert torch.compile(net, backend="aot_eager", fullgraph=True)(torch.arange(5)).dtype is BF16
    assert net.float()(torch.arange(5)).dtype is torch.float32


def encoder(batch_first=True):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=batch_first)
    return torch.nn.TransformerEncoder(layer, 2).eval(), torch.randn(3, 5, 16)


def fused_calls(net, *args, **kwargs):
    """Return how many encoder layers take the path that calls none of their modules."""
    with torch.no_grad(), autocast(), torch.profiler.profile() as profile:
        net(*args, **kwargs)
    return sum(event.count for event in profile.key_averages() if event.key == "aten::_transformer_encoder_layer_fwd")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["layers.0.linear1", "layers.0.norm2", "layers.0.self_attn"])
def test_an_encoder_layer_in_eval_leaves_its_fused_path_where_something_in_it_is_kept(name):
    net, batch = encoder()
    assert fused_calls(net, batch) == 2
    ampbench.keep_fp32(net, name)
    for same in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert fused_calls(same, batch) == 1
    ampbench.release_fp32(net, name)
    assert fused_calls(net, batch) == 2
    assert not any(module._forward_hooks for module in net.modules())


@pytest.mark.filterwarnings("ignore")
def test_an_encoder_layer_in_eval_leaves_its_fused_path_for_a_kept_class():
    class Mine(torch.nn.Linear):
        pass

    net, batch = encoder()
    net.layers[0].linear1 = Mine(16, 32)
    net.layers[1].linear2 = later = Mine(32, 16)
    before = later.__getstate__()
    ampbench.keep_fp32(Mine)
    net.layers[1].linear2 = Mine.__new__(Mine)
    net.layers[1].linear2.__setstate__(before)
    assert fused_calls(net, batch) == 0
    net.layers[1].linear2 = Mine(32, 16)
    assert fused_calls(net, batch) == 0
    ampbench.release_fp32(Mine)
    assert fused_calls(net, batch) == 2
    assert {"__init__", "__setstate__"}.isdisjoint(Mine.__dict__)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["layers.0.self_attn", "layers.0"])
def test_an_encoder_in_half_with_an_island_takes_padded_batches(name):
    net, batch = encoder()
    padded = torch.arange(5).expand(3, 5) > torch.tensor([[4], [2], [3]])
    with torch.no_grad():
        expected = net(batch, src_key_padding_mask=padded)
        ampbench.keep_fp32(net, name, cast_back=True).half()
        out = net(batch.half(), src_key_padding_mask=padded)
    assert out.dtype is torch.float16
    assert torch.allclose(out.float(), expected, atol=1e-2)


def test_an_input_given_twice_stays_one():
    @ampbench.keep_fp32
    def same(query, key, *, value):
        return query is key and key is value[0]

    half = torch.ones(2, dtype=BF16)
    assert same(half, half, value=[half])
    assert not same(half, half.clone(), value=[half])
