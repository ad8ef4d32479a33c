"""A watched training has the bits of an unwatched one, in every form, and leaves nothing behind."""

import os
from pathlib import Path

import pytest
import torch
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizers

import ampbench
from ampbench.studies.watch import Watching
from tests.watching.loops import Net, data, same_bits, sgd, trained

FORMS = ("fp32", "autocast", "fp16", "fused", "pure", "accumulation", "clipping", "checkpointing", "overflowing")


def hooks() -> list[int]:
    every = [
        module_hooks._global_forward_hooks, module_hooks._global_forward_pre_hooks,
        optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks,
    ]  # fmt: skip
    return [len(each) for each in every]


@pytest.mark.parametrize("form", FORMS)
def test_a_watched_training_has_the_same_bits(form: str) -> None:
    before, backward = hooks(), torch.Tensor.backward
    plain, _ = trained(form, 200, watched=False)
    seen, watch = trained(form, 200, watched=True)
    assert watch is not None
    assert same_bits(plain, seen)
    assert Watching.FAILED not in {statement.code for statement in watch.statements}
    assert len(watch.record.looks) == (6 if form == "accumulation" else 11)
    assert hooks() == before
    assert torch.Tensor.backward is backward


@pytest.mark.slow
def test_a_compiled_training_has_the_same_bits() -> None:
    plain, _ = trained("fp32", 200, watched=False, wrap=torch.compile)
    torch.compiler.reset()
    seen, watch = trained("fp32", 200, watched=True, wrap=torch.compile)
    assert watch is not None
    assert same_bits(plain, seen)
    assert [statement.code for statement in watch.statements][:2] == [Watching.HEALTHY, Watching.COMPILED]
    assert watch.record.looks[-1].bf16 is not None


def _of_one_process(rank: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1"}
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    parallel = torch.nn.parallel.DistributedDataParallel
    plain, _ = trained("fp32", 200, watched=False, wrap=parallel)
    seen, watch = trained("fp32", 200, watched=True, wrap=parallel)
    assert watch is not None
    assert same_bits(plain, seen)
    assert watch.statements[0].code is Watching.HEALTHY
    assert watch.record.network == "Net"
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_have_the_same_bits(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_of_one_process, (str(tmp_path),), nprocs=2)


def test_hooks_are_gone_after_an_error_in_the_loop() -> None:
    before, module = hooks(), Net()
    watch = ampbench.watch(module, sgd(module.parameters()))
    with pytest.raises(ZeroDivisionError), watch:
        raise ZeroDivisionError("division of the loop")
    assert hooks() == before
    assert not module._forward_pre_hooks
    assert watch.statements[0].code is Watching.RAISED
    assert watch.statements[0].facts == {"error": "ZeroDivisionError: division of the loop", "step": 1}


def test_nothing_waits_for_the_device_between_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU a read never waits; so reads are counted, as if each tensor were on a device that waits."""
    monkeypatch.setattr("ampbench.watching.loop.Watch._waits", lambda *_: True)
    module = Net()
    optimizer = sgd(module.parameters())
    reads: list[str] = []
    for name in ("item", "cpu", "tolist", "numpy", "__float__", "__bool__", "__int__", "to"):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda *args, _original=original, _name=name: (reads.append(_name), _original(*args))[1]
        )
    counts = []
    with ampbench.watch(module, optimizer, every=10):
        for x, _ in data(25):
            module(x).square().mean().backward()
            optimizer.step()
            counts.append(len(reads))
            reads.clear()
    assert [step + 1 for step, count in enumerate(counts) if count] == [1, 10, 20]
