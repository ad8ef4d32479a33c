"""What `make docs` adds to the pages of docs/: generated tables, every verb's help, and links into the repository.

mkdocs calls `on_…` (`hooks` in mkdocs.yml). `GENERATED` makes what a line `<!-- generated: NAME -->` stands for.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ampbench.cli import main
from ampbench.core.metrics import COLUMNS
from ampbench.show.document import markdown_table
from ampbench.workloads.index import WORKLOADS, WorkloadSpec
from benchmarks import atlas as networks
from benchmarks import defects as checks
from benchmarks import rules as probes

MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
_LEADING_OUT = re.compile(r"(?<=\]\()(\.\./[^)]*)")


def columns() -> str:
    """Return the table of the columns of `ampbench.load`."""
    rows = [[column.name, column.unit, column.better or "", column.summary] for column in COLUMNS.values()]
    headers = ["column", "unit", "better", "what"]
    return markdown_table(headers, rows, headers).replace("\\`", "`")  # summaries are Markdown


def workloads() -> str:
    """Return the table of the built-in workloads with the sizes of their presets."""
    rows = [
        [spec.name, spec.family, spec.summary, _sizes(spec), spec.items, ", ".join(spec.suite) or "–"]
        for spec in WORKLOADS.values()
    ]
    headers = ["workload", "family", "what it is", "parameters: tiny / small / large", "items", "default suite"]
    return markdown_table(headers, rows, headers)


def _sizes(spec: WorkloadSpec) -> str:
    return ", ".join(f"{name} {' / '.join(map(str, values))}" for name, values in spec.sizes.items())


def commands() -> str:
    """Return the help of every verb."""
    contexts = {
        f"ampbench {name}": main.verb(name).make_context(f"ampbench {name}", [], resilient_parsing=True)
        for name in main.verbs()
    }
    return "\n\n".join(f"## {name}\n\n```text\n{verb.get_help().strip()}\n```" for name, verb in contexts.items())


GENERATED: Mapping[str, Callable[[], str]] = {
    "model": lambda: re.findall(r"```python\n# model.*?```", Path("README.md").read_text(), re.DOTALL)[0],
    "columns": columns,
    "workloads": workloads,
    "commands": commands,
    "defects": lambda: checks.page(probes.read_probes(checks.PROBES)),
    "rules": lambda: probes.page(probes.read_probes()),
    "atlas": lambda: networks.page(networks.RESULTS),
}


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Return a page of the site: generated parts filled in, links out of docs/ leading into the repository."""

    def absolute(match: re.Match[str]) -> str:
        path = os.path.normpath(Path("docs", page.file.src_uri).parent / match[1])
        return match[1] if path.startswith("docs/") else f"{config.repo_url}/{config.edit_uri}{path}"

    filled = MARK.sub(lambda match: GENERATED[match[1]](), markdown).replace("<details>", '<details markdown="1">')
    return _LEADING_OUT.sub(absolute, filled)
