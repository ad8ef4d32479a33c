"""The sections of the page in their order: each a function from the material to a `View`, None where it has no data.

A new section is a function here and a template of its own.
"""

from collections.abc import Callable

from ampbench.report.material import Material
from ampbench.report.result import banner
from ampbench.report.views.cases import cases
from ampbench.report.views.distributions import distributions
from ampbench.report.views.explanation import explanation, studies
from ampbench.report.views.method import environment, method
from ampbench.report.views.networks import networks
from ampbench.report.views.sweeps import sweeps
from ampbench.report.views.tradeoff import tradeoff
from ampbench.report.views.trends import trends
from ampbench.show.page import View

VIEWS: tuple[Callable[[Material], View | None], ...] = (
    banner,
    networks,
    cases,
    tradeoff,
    distributions,
    sweeps,
    trends,
    explanation,
    studies,
    environment,
    method,
)
