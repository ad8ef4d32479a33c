"""`ampbench study batch`: what it prints of a run, and what it refuses."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampbench.instruments.batch.records import FITS, BatchPoint
from ampbench.instruments.batch.search import reached
from ampbench.store import list_runs, read_run
from tests.instruments.batch.batch_points import BF16, FP32, search, stored
from tests.stored_runs import RUN

Run = Callable[..., Any]


def test_the_table_fits_a_hundred_columns_and_all_forms_are_printed(tmp_path: Path, ampbench: Run) -> None:
    stored(tmp_path / "results", *search(FP32, 100, 1000.0), *search(BF16, 150, 3000.0))
    shown = ampbench("show", RUN)
    assert (shown.code, max(map(len, shown.out.splitlines())) <= 100) == (0, True)
    assert len(list(csv.DictReader(io.StringIO(ampbench("show", RUN, "--format", "csv").out)))) == 2
    assert len(json.loads(ampbench("show", RUN, "--json").out)["cases"]) == 2
    assert "Batches tried in fp32" in ampbench("show", RUN, "--all").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "search the batch of which workload? Name one, as in `ampbench study batch mlp`"),
        (["mlpp"], "unknown workload 'mlpp': did you mean mlp?"),
        (["mlp", "--precision", "bf16_autocst"], "did you mean bf16_autocast"),
        (["mlp", "--memory-limit", "4XB"], "--memory-limit '4XB' is not a size such as 4GiB, 512MB or 1048576"),
        (["mlp", "--memory-limit", "0"], "--memory-limit 0: must be above 0"),
        (["mlp", "--max-batch", "0"], "--max-batch"),
        (["mlp", "--max-btch", "8"], "did you mean --max-batch"),
        (["mlp", "--resolution", "2"], "--resolution"),
        (["mlp", "--set", "batch_size=4"], "--set batch_size=4: the batch is what is searched for; --max-batch bounds"),
    ],
)
def test_a_usage_error_is_one_line(arguments: list[str], message: str, tmp_path: Path, ampbench: Run) -> None:
    found = ampbench("study", "batch", *arguments)
    assert (found.code, found.out) == (2, "")
    assert message in found.err
    assert found.err.count("\n") == 1
    assert not (tmp_path / "results").exists()


BY_HAND = """
import os
import sys

if os.environ.get("MALLOC_MMAP_THRESHOLD_") != "65536":  # each block is a mapping
    os.environ.update(MALLOC_MMAP_THRESHOLD_="65536", MALLOC_TRIM_THRESHOLD_="0", MALLOC_MMAP_MAX_="1000000")
    os.execv(sys.executable, [sys.executable, *sys.argv])
import torch
import torch._dynamo
from model import make

torch.set_num_threads(1)


def resident(field):
    return [int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(field)][0]


for batch in map(int, sys.argv[1:]):
    read, write = os.pipe()
    if os.fork() == 0:
        before, of_files = resident("VmRSS"), resident("RssFile")
        module, inputs, loss = make(batch)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            loss(module(inputs)).backward()
            optimizer.step()
        os.write(write, f"{resident('VmHWM') - before} {resident('RssFile') - of_files}".encode())
        os._exit(0)
    os.close(write)
    print(os.read(read, 100).decode())
    os.close(read)
    os.wait()
"""
MODEL = """
import torch
from torch import nn


def make(batch_size=4):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()]
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return module, torch.randn(batch_size, 3, 64, 64), lambda output: output.float().square().mean()
"""


@pytest.mark.slow
def test_a_real_search_ends_where_a_search_by_hand_does_that_asks_the_kernel(tmp_path: Path, ampbench: Run) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "by_hand.py").write_text(BY_HAND)
    limit = 120
    done = ampbench(
        "study", "batch", "model.py:make", "--phase", "training", "--precision", "fp32", "--memory-limit",
        f"{limit}MiB", "--rounds", "1", "--seconds", "5ms", "--threads", "1",
    )  # fmt: skip
    assert done.code == 0, done.err
    (points,) = read_run(list_runs(tmp_path / "results")[0]).several_of(BatchPoint).values()
    found = reached(points)
    assert found.largest is not None
    sizes = [point.batch for point in points if point.outcome == FITS and point.batch >= 8]
    by_hand = subprocess.run(
        [sys.executable, "by_hand.py", *map(str, sizes)], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    # the kernel counts the pages of files, too: how many it maps as a library is touched depends on how they were read
    taken = [int(grown) - int(of_files) for grown, of_files in map(str.split, by_hand)]
    # and what libraries allocate for themselves, once, whatever the batch
    more = [each - (point.peak_bytes or 0) for each, point in zip(taken, _of(points, sizes), strict=True)]
    assert all(0 < each < 10 * 2**20 for each in more), more
    assert max(more) - min(more) < 0.1 * limit * 2**20


def _of(points: list[BatchPoint], sizes: list[int]) -> list[BatchPoint]:
    return [next(point for point in points if point.batch == batch) for batch in sizes]
