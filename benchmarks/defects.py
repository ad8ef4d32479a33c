"""The site's list of defects, from the checks in results/checks: `python -m benchmarks.defects` prints it.

`python -m benchmarks.defects --probe 2.14.1` first runs all checks with that torch, in an environment made for it.
"""

import argparse
import gzip
import re
import subprocess
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ampbench.defects import AREAS, CHECKS, Check, program_of
from ampbench.records.case import DEVICES
from ampbench.records.rules import DEVICE, FAKE
from ampbench.show.document import escaped, markdown_table
from ampbench.store import StoredRun
from ampbench.studies.check import DEFECTIVE, DIFFERS, GOOD, NOT_SHOWN, Checked, digest_of, latest
from benchmarks.rules import read_probes, version

ROOT = Path(__file__).parents[1]
PROBES = ROOT / "results" / "checks"
ABSENT = "–"
"""Stands for a check that did not run with a torch, or ran by an older program."""

HEAD = """\
**Not run on hardware: {missing}.** No such device was available. Checks that work on *fake tensors* used these
instead: fake tensors pass through PyTorch's dispatcher, and so through autocast, but compute nothing. The CPU was
{cpu}; checks of kernels and speed can differ on another CPU. A test plants the defect of each check that no torch
below shows, to prove that its program sees it."""

MEANINGS = {
    GOOD: "the program sees the correct behaviour",
    DEFECTIVE: "the behaviour is wrong, and no document describes it",
    DIFFERS: "designed so, but most users expect something else: a trap",
    NOT_SHOWN: "undecided: the torch or the machine lacks something that the check needs",
    ABSENT: "not run: the check or its program is newer than the run",
}
WITHOUT_CHECK = """\
These reports have no check: the necessary hardware was missing, or no program reproduced them on this CPU (with the
compiler's caches off).

* CUDA graphs captured within an autocast region replay stale casts of the weights (pytorch/pytorch#71631,
  pytorch/pytorch#81558). Not tried: needs CUDA graphs.
* Training of `fbnetv3_b` in fp16 autocast fails an accuracy test on XPU since torch 2.13, whose compiler keeps
  roundings to half (pytorch/pytorch#188261, intel/torch-xpu-ops#4018). With similar first layers, the gradient of the
  first BatchNorm's weight is 3.5% from fp64 in eager mode and 14% compiled, with torch 2.11, 2.13 and 2.15 alike;
  `emulate_precision_casts` lowers it to 3.7% from 2.13 on. This is not the reported change.
* Compiled attention with grouped queries gives NaN gradients because a padded product runs in the region's dtype
  (pytorch/pytorch#159469). With torch 2.15, a mask, odd lengths, bf16 and fp16, all gradients are finite and 0.1% to
  3% from eager mode. Only GPUs pad products.
* With `dynamic=True`, ops that the compiler leaves to torch return garbage under autocast (pytorch/pytorch#194329).
  With torch 2.15 and a similar network in bf16 and fp16, results equal eager mode's to 1e-6.
* A compiled embedding, linear layer and RMSNorm have large errors in bf16 autocast on a Blackwell GPU
  (pytorch/pytorch#191433). With torch 2.15, compiled and eager mode have the same error at three sizes.
* `torch.compile` assumes one autocast state for the whole backward pass (pytorch/pytorch#156780): a documented
  setting. `compile-backward-autocast` checks the consequence.
* Products on GPUs accumulate partial sums in half precision, whatever the switch is (pytorch/pytorch#116870,
  pytorch/pytorch#153095). Not tried: needs a GPU.
* Whole models fail accuracy tests on XPU, and some ops are slower since 2.14 (intel/torch-xpu-ops#2592,
  intel/torch-xpu-ops#4904). Not tried: needs an XPU."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """The outcome of each check on a type of device, by torch; `versions` are the oldest first."""

    device: str
    versions: Sequence[str]
    found: Sequence[dict[str, Checked]]

    def outcomes(self, check: str) -> list[str]:
        """Return the outcome of a check with each torch."""
        return [by_check[check].outcome if check in by_check else ABSENT for by_check in self.found]

    @property
    def checks(self) -> list[Check]:
        """The checks of the device or, without one, of fake tensors."""
        real = any(result.how == DEVICE for by_check in self.found for result in by_check.values())
        return [check for check in CHECKS.values() if self.device in check.devices and (real or check.fake)]

    @property
    def changed(self) -> list[Check]:
        """The checks whose outcomes differ between torch versions that could show them."""
        return [check for check in self.checks if len(set(self.outcomes(check.name)) - {ABSENT, NOT_SHOWN}) > 1]


def matrices(runs: Sequence[StoredRun]) -> list[Matrix]:
    """Return a matrix for each device, from results of today's programs in each torch's last run."""
    versions = list(dict.fromkeys(map(version, runs)))
    asked = [latest(run for run in runs if version(run) == known) for known in versions]
    listed = []
    for device in DEVICES:
        results = [
            {name: result for (where, name), result in known.items() if where == device and _is_todays(result)}
            for known in asked
        ]
        if any(results):
            listed.append(Matrix(device, versions, results))
    return listed


def _is_todays(result: Checked) -> bool:
    check = CHECKS.get(result.check)
    return check is not None and digest_of(program_of(check, result.device)) == result.program


def page(runs: Sequence[StoredRun]) -> str:
    """Return the site's list of checks as runs of several torch versions, the oldest first, have them."""
    listed = matrices(runs)
    fake = [
        matrix.device.upper() for matrix in listed if any(result.how == FAKE for result in matrix.found[-1].values())
    ]
    linked = re.sub(r"[\w-]+/[\w-]+#\d+", lambda thread: _link(thread[0]), WITHOUT_CHECK)
    parts = [
        HEAD.format(missing=" and ".join(fake) or "nothing", cpu=" or ".join(dict.fromkeys(map(_cpu, runs)))),
        "\n".join(f"* *{name}*: {meaning}" for name, meaning in MEANINGS.items()),
        _counts(listed),
        "## What changed between versions",
        _changed(listed),
    ]
    for area in AREAS:
        parts.append(f"## Area {area}")
        parts += [_of_check(check, listed) for check in CHECKS.values() if check.area == area]
    return "\n\n".join([*parts, "## Reported, without a check", linked]) + "\n"


def _cpu(run: StoredRun) -> str:
    flags = [name for name in run.header.environment.cpu_flags if name.startswith(("avx512_bf16", "avx512f", "amx"))]
    return f"an {run.header.environment.cpu} with {', '.join(flags) or 'neither AVX512 nor AMX'}"


def _counts(listed: Sequence[Matrix]) -> str:
    rows = []
    for matrix in listed:
        for outcome in (DEFECTIVE, DIFFERS, GOOD, NOT_SHOWN):
            counts = [sum(result.outcome == outcome for result in by_check.values()) for by_check in matrix.found]
            rows.append([matrix.device, outcome, *map(str, counts)])
    return markdown_table(["device", "checks that are", *listed[0].versions], rows, ["device", "checks that are"])


def _changed(listed: Sequence[Matrix]) -> str:
    rows = [
        [matrix.device, check.name, check.title, *matrix.outcomes(check.name)]
        for matrix in listed
        for check in matrix.changed
    ]
    headers = ["device", "check", "what is wrong", *listed[0].versions]
    return markdown_table(headers, rows, headers) if rows else "Nothing."


def _of_check(check: Check, listed: Sequence[Matrix]) -> str:
    """Return the section of a check: the defect, outcomes by torch, what was seen last, the remedy and the reports."""
    rows = [[matrix.device, *matrix.outcomes(check.name)] for matrix in listed if check in matrix.checks]
    results = {matrix.device: matrix.found[-1][check.name] for matrix in listed if check.name in matrix.found[-1]}
    seen = {device: result.why or f"{result.seen} (expected: {result.expected})" for device, result in results.items()}
    lines = [f"### {check.name}", f"{escaped(check.title)}.", markdown_table(["device", *listed[0].versions], rows)]
    lines += [f"Seen on {device}: {escaped(text)}." for device, text in seen.items()]
    lines += [f"Why: {escaped(check.why)}.", f"What to do: {escaped(check.remedy)}."]
    lines += [f"Mended in torch {check.mended}."] * bool(check.mended)
    return "\n\n".join([*lines, f"Reports: {', '.join(map(_link, check.threads))}"])


def _link(thread: str) -> str:
    return f"[{thread}](https://github.com/{thread.replace('#', '/issues/')})"


def probe(torch: str, folder: Path = PROBES) -> Path:
    """Run all checks with a version of torch, in an environment made for it, and return the file that has the run."""
    with tempfile.TemporaryDirectory() as folder_made:
        python = Path(folder_made) / "environment" / "bin" / "python"
        venv.create(python.parents[1], with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", f"torch=={torch}", "--editable", ROOT]
        subprocess.run(install, check=True)
        results = Path(folder_made) / "results"
        command = [python, "-m", "ampbench", "check", *AREAS, "--results", results, "--label", f"torch {torch}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder_made)
        (run,) = (results / "runs").glob("*.jsonl")
        folder.mkdir(parents=True, exist_ok=True)
        stored = folder / f"torch-{torch}.jsonl.gz"
        stored.write_bytes(gzip.compress(run.read_bytes(), 9, mtime=0))
    return stored


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.defects", description="Print the site's list of defects."
    )
    parser.add_argument("--probe", nargs="+", default=[], metavar="VERSION", help="first ask these versions of torch")
    for torch in parser.parse_args().probe:
        print(probe(torch))
    print(page(read_probes(PROBES)))
