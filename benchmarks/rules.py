"""The site's list of autocast's rules, from the probes in results/rules: `python -m benchmarks.rules` prints it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from packaging.version import Version

from ampbench.records.rules import FAKE, RuleProbe
from ampbench.show.comparison import rule_lines
from ampbench.show.document import escaped, markdown, markdown_table
from ampbench.show.studies import section
from ampbench.store import StoredRun, read_run
from ampbench.studies.rules import STUDY, compare_rules, probed_twice, torches

ROOT = Path(__file__).parents[1]
PROBES = ROOT / "results" / "rules"
DOCUMENTS = {"XPU reference": "xpu_amp_op_reference.json", "PyTorch page": "pytorch_amp_page.json"}
"""The files of ampbench/trace/ that hold the documents, whose module needs torch."""

HEAD = """\
**Not run on hardware: {missing}.** No such device was available. Its ops ran on *fake tensors*, which pass through
PyTorch's dispatcher, and so through autocast's rules, but compute nothing: the rules are those of the named torch, but
no kernel ran on the device."""
EFFECTS = """\
Inputs of an op are:

* *lower*: cast to the autocast dtype
* *lower inside*: left alone, but ops inside cast theirs to the autocast dtype; fp32 inputs give float32
* *float32*: cast to float32
* *widest*: cast to the widest of its floating inputs
* *unlisted*: left alone
* *banned*: refused with an error"""


def read_probes(folder: Path = PROBES) -> list[StoredRun]:
    """Return the runs of a folder that probed the rules, the oldest torch first."""
    return sorted(map(read_run, folder.glob("*.jsonl.gz")), key=lambda run: Version(version(run)))


def page(probed: Sequence[StoredRun]) -> str:
    """Return the list of probes of several torch versions, the oldest first; all have the same device types."""
    newest = probed[-1]
    (torch,) = torches([newest], lambda run: run.of(RuleProbe))
    devices = [probe.device for probe in torch.results]
    observed = [[version(run), *(probe.how for probe in run.of(RuleProbe).values())] for run in probed]
    fake = [probe.device.upper() for probe in torch.results if probe.how == FAKE]
    changed = {}
    for old, new in pairwise(probed):
        changes = [change for pair in probed_twice(old, new) for change in compare_rules(*pair)]
        lines = rule_lines(changes) or ["no rule of autocast changed"]
        changed[f"### From torch {version(old)} to {version(new)}"] = lines
    disagreeing = section(STUDY, None, torch)
    parts = [
        HEAD.format(missing=" and ".join(fake) or "nothing"),
        markdown_table(["torch", *devices], observed, devices),
        "\n".join(f"* **{label}**: {escaped(_source(name))}" for label, name in DOCUMENTS.items()),
        EFFECTS,
        "## What changed between versions",
        *("\n".join([f"{title}\n", *(f"* {escaped(line)}" for line in lines)]) for title, lines in changed.items()),
        "## What disagrees",
        markdown([replace(disagreeing, blocks=disagreeing.blocks[:-1])], level=3),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _source(name: str) -> str:
    return str(json.loads((ROOT / "ampbench" / "trace" / name).read_text(encoding="utf-8"))["source"])


def version(probed: StoredRun) -> str:
    """Return the torch of a run without its build."""
    return Version(probed.header.environment.torch_version).public


if __name__ == "__main__":
    print(page(read_probes()))
