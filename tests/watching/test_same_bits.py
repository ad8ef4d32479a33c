"""A watched training has the bits of an unwatched one, in every form, and leaves nothing behind."""

import contextlib
import os
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.modules import module as module_hooks
from torch.optim import optimizer as optimizers

import ampbench
from ampbench.studies.watch import Watching
from ampbench.watching.updates import SAMPLE
from ampbench.worker.memory import cpu_changes
from tests.watching.loops import Net, data, same_bits, sgd, take_step, trained

MOST_CALLS = 50
"""Calls of Python and C in a step between looks: some 10 microseconds, 0.2% of a step of 5 ms."""

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


READS = "item", "cpu", "tolist", "numpy", "__float__", "__bool__", "__int__", "to"


@pytest.mark.parametrize("fused", [None, False, True])
def test_nothing_waits_for_the_device_between_looks(monkeypatch: pytest.MonkeyPatch, fused: bool | None) -> None:
    """On the CPU a read never waits; so reads are counted, as if each tensor were on a device that waits."""
    monkeypatch.setattr("ampbench.watching.Watch._waits", lambda *_: True)
    reads: list[None] = []
    for name in READS:
        original = getattr(torch.Tensor, name)

        def read(*args: Any, _original: Any = original, **kwargs: Any) -> Any:
            reads.append(None)
            return _original(*args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, read)

    def reads_of_steps(watched: bool) -> list[int]:
        module, counts = Net(), []
        optimizer = torch.optim.AdamW(module.parameters(), fused=fused)
        scaler = None if fused is None else torch.amp.GradScaler("cpu", init_scale=4.0)
        with ampbench.watch(module, optimizer, scaler=scaler, every=10) if watched else contextlib.nullcontext():
            for x, _ in data(25):
                take_step(module(x).square().mean(), optimizer, scaler)
                counts.append(len(reads))
                reads.clear()
        return counts

    pairs = zip(reads_of_steps(False), reads_of_steps(True), strict=True)
    assert [step for step, (plain, seen) in enumerate(pairs, 1) if seen != plain] == [1, 10, 20]


def test_a_step_between_looks_costs_few_calls_and_no_look_keeps_a_batch() -> None:
    module, counts, batches = Net(), [], []
    optimizer = sgd(module.parameters())

    def count(_: Any, event: str, __: Any) -> None:
        counts[-1] += event in ("call", "c_call")

    for watch in (contextlib.nullcontext(), ampbench.watch(module, optimizer, every=1000)):
        with watch:
            for place, (x, _) in enumerate(data(5)):
                counts.append(0)
                sys.setprofile(count if place else None)
                module(x).square().mean().backward()
                optimizer.step()
                sys.setprofile(None)
                batches.append(weakref.ref(x))
                del x
                assert place == 0 or batches[-2]() is None
    assert counts[-1] - counts[4] <= MOST_CALLS


def test_a_look_takes_the_memory_of_one_modules_activations() -> None:
    peaks = {}
    for watched in (False, True):
        module = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(6)))
        optimizer, x = sgd(module.parameters()), torch.randn(4096, 128)

        def step(module: Any = module, x: Any = x, optimizer: Any = optimizer) -> None:
            take_step(module(x).square().mean(), optimizer)

        with ampbench.watch(module, optimizer, every=1) if watched else contextlib.nullcontext():
            step()
            peaks[watched] = cpu_changes([step])[0].peak
    numbers = sum(min(member.numel(), SAMPLE) for member in module.parameters())
    assert peaks[True] - peaks[False] <= 4 * x.numel() + 8 * 8 * numbers
