"""What the charts of scopes draw: losses, memory."""

from ampbench.instruments.scope.records import SCOPES, WHOLE_LOOP
from ampbench.report.material import material_of
from ampbench.show.charts import Chart
from ampbench.show.page import Part
from ampbench.store import StoredRun
from tests.report.materials import part_of
from tests.report.studied_runs import scope_run, scoped


def drawn(*runs: StoredRun) -> Part:
    """Return the part of the page that tells of `runs`."""
    part = part_of("scope", material_of([], explanations=list(runs)))
    assert part is not None
    return part


def chart_of(part: Part, id: str) -> Chart:
    return next(chart for chart in part.charts if chart.id == id)


def test_losses_of_scopes_are_drawn_beside_those_of_fp64():
    part = drawn(scope_run(scoped()))
    rows = part.datasets["studies-scope-losses"]
    assert list(dict.fromkeys(row["series"] for row in rows)) == ["fp64", *SCOPES]
    loop = [row["loss"] for row in rows if row["series"] == WHOLE_LOOP]
    fp64 = [row["loss"] for row in rows if row["series"] == "fp64"]
    assert loop[0] == fp64[0]
    assert all(here > there for here, there in zip(loop[1:], fp64[1:], strict=True))
    assert [row["error"] for row in rows if row["series"] == WHOLE_LOOP][:2] == ["0", "3.8e-02"]


def test_memory_that_grows_is_drawn():
    part = drawn(scope_run(scoped()))
    loop = [row["alive"] for row in part.datasets["studies-scope-memory"] if row["series"] == WHOLE_LOOP]
    assert loop == [(1 << 18) * step for step in range(1, 9)]


def test_memory_is_told_in_the_unit_of_the_most_that_is_left():
    chart = chart_of(drawn(scope_run(scoped())), "studies-scope-memory")
    assert chart.spec["transform"] == [{"calculate": f"datum.alive / {1 << 20}", "as": "left"}]
    assert chart.spec["layer"][0]["encoding"]["y"]["title"] == "left after a step, MiB"


def test_memory_is_not_drawn_where_no_step_leaves_any():
    found = scoped()
    for run in found.scopes:
        run.alive_bytes[:] = [0] * len(run.alive_bytes)
    assert [chart.id for chart in drawn(scope_run(found)).charts] == ["studies-scope-losses"]


def test_memory_is_not_drawn_where_steps_only_free_what_was_there_before():
    found = scoped()
    for run in found.scopes:
        run.alive_bytes[:] = [-4096] * len(run.alive_bytes)
    assert [chart.id for chart in drawn(scope_run(found)).charts] == ["studies-scope-losses"]


def test_without_losses_and_memory_there_is_no_chart():
    bare = scoped(reference_losses=[])
    for run in bare.scopes:
        run.alive_bytes.clear()
        run.losses.clear()
    part = drawn(scope_run(bare))
    assert part.charts == []
    assert len(part.details) == 1
