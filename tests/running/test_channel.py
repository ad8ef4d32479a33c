"""What a server is started with."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampbench.records.requests import ALLOCATOR_TUNABLES
from ampbench.running.channel import server_environment

FAULTS = """
import resource, torch
layers = torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3, padding=1)
network = torch.nn.Sequential(*layers)
inputs = torch.randn(4, 3, 32, 32)
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
with torch.inference_mode():
    for _ in range(20):
        network(inputs)
    before = faults()
    for _ in range(50):
        network(inputs)
print((faults() - before) / 50)
"""


def test_what_is_given_wins_over_what_is_inherited_and_that_over_what_every_server_needs() -> None:
    found = server_environment(
        {"HOME": "/home/a", "OMP_NUM_THREADS": "2", "PYTHONUNBUFFERED": "0"}, {"OMP_NUM_THREADS": "1"}, []
    )
    assert (found["HOME"], found["OMP_NUM_THREADS"], found["PYTHONUNBUFFERED"]) == ("/home/a", "1", "1")


def test_the_callers_allocator_settings_come_last_and_so_win() -> None:
    own = "glibc.malloc.trim_threshold=131072"
    assert server_environment({}, {}, [])["GLIBC_TUNABLES"] == ALLOCATOR_TUNABLES
    assert server_environment({"GLIBC_TUNABLES": own}, {}, [])["GLIBC_TUNABLES"] == f"{ALLOCATOR_TUNABLES}:{own}"
    assert server_environment({}, {"GLIBC_TUNABLES": own}, [])["GLIBC_TUNABLES"] == own


def test_a_commits_folders_come_first_then_this_ampbench_then_the_callers_path() -> None:
    found = server_environment({"PYTHONPATH": "/mine"}, {}, [Path("/commit"), Path("/commit/src")])
    parts = found["PYTHONPATH"].split(os.pathsep)
    assert parts[:2] == ["/commit", "/commit/src"]
    assert parts[-1] == "/mine"


@pytest.mark.slow
def test_a_step_that_allocates_half_a_mebibyte_pays_no_page_faults() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], env=server_environment(os.environ, {}, []), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert float(done.stdout) < 20
