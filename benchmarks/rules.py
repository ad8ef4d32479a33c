"""docs/autocast-rules.md, from the probes in results/rules: `python -m benchmarks.rules`, or `make rules`."""

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
from ampbench.studies.rules import SOURCES, STUDY, compare_rules, probed_twice, torches
from ampbench.trace.rules import document

ROOT = Path(__file__).parents[1]
PROBES = ROOT / "results" / "rules"
PAGE = ROOT / "docs" / "autocast-rules.md"

HEAD = """\
# What autocast does to each op

[ampbench](../README.md)

In which dtype does autocast run each op, where do documents disagree, and what changed between torch versions? Look
here when an op under autocast returns an unexpected dtype or raises an unexpected error, for example after an upgrade.

`make rules` generates this page from the probes in `results/rules/` and overwrites manual edits.
[explain.md](explain.md#which-rules-autocast-has-here) describes the probes and has the command for your torch.

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
    """Return the page about probes of several torch versions, the oldest first; all have the same device types."""
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
    disagreeing, stored = section(STUDY, None, torch), f"results/rules/torch-{version(newest)}.jsonl.gz"
    parts = [
        HEAD.format(missing=" and ".join(fake) or "nothing"),
        markdown_table(["torch", *devices], observed, devices),
        "\n".join(f"* **{escaped(label)}**: {escaped(document(name)['source'])}" for name, label in SOURCES.items()),
        EFFECTS,
        "## What changed between versions",
        *("\n".join([f"{title}\n", *(f"* {escaped(line)}" for line in lines)]) for title, lines in changed.items()),
        "## What disagrees",
        markdown([replace(disagreeing, blocks=disagreeing.blocks[:-1])], level=3),
        f"## Every op\n\nIn your torch: `ampbench explain rules -v`. Stored: `ampbench show {stored} -v`.",
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def version(probed: StoredRun) -> str:
    """Return the torch of a run without its build."""
    return Version(probed.header.environment.torch_version).public


if __name__ == "__main__":
    PAGE.write_text(page(read_probes()), encoding="utf-8")
