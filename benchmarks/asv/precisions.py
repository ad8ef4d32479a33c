"""What each precision costs and buys, for asv: a class for each workload of the default suite (docs/asv.md).

A workload whose own version is bumped gets another class, and so a new series.
"""

from ampbench.asv_suite import Environment, suite  # noqa: F401 - asv finds what is here by name
from ampbench.workloads.index import WORKLOADS, class_name

for spec in WORKLOADS.values():
    if spec.suite:
        globals()[class_name(spec)] = suite(spec.name)
