"""docs/explain.md: its model is that of its output, and what does not vary is still printed."""

import functools
import re
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ampbench.judge.compare import change_sentences, compare_traces
from ampbench.records.rules import RuleProbe
from ampbench.store import read_run
from ampbench.studies.rules import compare_rules
from tests.documented.pages import fences
from tests.traced_programs import trace

Run = Callable[..., Any]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explain.md").read_text()
FENCES = [(one.language, one.text) for one in fences("docs/explain.md")]
(MODEL,) = [text for kind, text in FENCES if kind == "python" and "def head():" in text]
(SUMMARY,) = [text for _, text in FENCES if text.startswith("model.py:head · ")]
(REGRESSED,) = [text for _, text in FENCES if text.startswith("verdict ")]
RULES = sorted((ROOT / "results" / "rules").glob("*.jsonl.gz"))


@pytest.fixture
def model(tmp_path: Path) -> types.ModuleType:
    """The page's `model.py`, in the current folder too."""
    (tmp_path / "model.py").write_text(MODEL)
    module = types.ModuleType("model")
    exec(compile(MODEL, "model.py", "exec"), module.__dict__)
    return module


def sections(text: str) -> dict[str, Counter[str]]:
    """Return the lines below each title, without times and blanks: rows that times put in order are in none."""
    found: dict[str, Counter[str]] = {}
    for line in text.splitlines():
        if re.match(r"  \S", line):
            title = line.strip()
            found[title] = Counter()
        elif found and line.strip():
            found[title][" ".join(re.sub(r"[\d.,]+ (ns|us|ms|s)\b", "", line).split())] += 1
    return found


def test_the_summary_has_the_tables_that_the_page_shows(model: types.ModuleType, ampbench: Run) -> None:
    said = ampbench("explain", "casts", "model.py:head", "--threads", "1")
    now, shown = sections(said.out), sections(SUMMARY)
    assert [now.get(title) for title in ("Where they come from", "Casts per op")] == [*shown.values()][-3::2], said.err
    assert said.out.startswith(f"{SUMMARY.splitlines()[0]}\n  3 casts a step, 1.69 MiB, ")


def test_what_made_the_example_regress_is_what_its_traces_tell(model: types.ModuleType) -> None:
    def traced(*, upcast: bool) -> Any:
        network, inputs = model.make(upcast=upcast)
        with torch.inference_mode():
            return trace(functools.partial(network, inputs), network).trace

    said = change_sentences(compare_traces(traced(upcast=False), traced(upcast=True)))
    shown = " ".join(REGRESSED.replace("model.py:make bf16_autocast", "").split())
    assert len(said) == 2
    assert shown.endswith(" ".join(said))


def test_the_rules_stored_are_of_the_versions_named_and_changed_where_the_page_says() -> None:
    versions = [file.name.removeprefix("torch-").removesuffix(".0.jsonl.gz") for file in RULES]
    assert f"from the probes of torch {versions[0]} to {versions[-1]} in `results/rules/`" in " ".join(PAGE.split())
    found = re.search(
        r"rule for (\w+) on (\w+): (\w+) → (\w+) between torch ([\d.]+) and ([\d.]+)\"", " ".join(PAGE.split())
    )
    assert found is not None
    op, device, was, now, *between = found.groups()
    before, after = (
        read_run(ROOT / "results" / "rules" / f"torch-{one}.jsonl.gz").of(RuleProbe)[device] for one in between
    )
    assert (f"aten::{op}", "observed", was, now) in [
        (one.op, one.field, one.before, one.after) for one in compare_rules(before, after)
    ]
