import pytest

from ampbench.records.ranges import ModuleError, layer_profile, ranked, with_totals


def error(module, own=None, total=None, overflowed=0, elements=100, **fields):
    return ModuleError(
        module=module,
        kind="Linear",
        elements=elements,
        own_rel_l2=own,
        total_rel_l2=total,
        overflowed=overflowed,
        **fields,
    )


def test_inherited_and_own_errors_add_in_squares():
    first, second, third, last = layer_profile(
        [error("a", 3e-3, 5e-3), error("b", 5e-3, 3e-3), error("c", None, 1.0), error("d", 1.0)]
    )
    assert first.inherited == pytest.approx(4e-3)
    assert second.inherited == 0.0
    assert third.inherited is None
    assert last.inherited is None
    assert [row.place for row in (first, second, third, last)] == [0, 1, 2, 3]


def test_overflow_comes_first_then_what_is_handed_it_then_the_own_error():
    rows = [
        error("small", 1e-4),
        error("large", 0.9),
        error("handed", overflowed=100, inputs_overflowed=5),
        error("some", 1e-3, overflowed=1),
        error("all", overflowed=100),
        error("not compared", elements=0, note="it does not run"),
    ]
    assert [row.module for row in ranked(rows)] == ["all", "some", "handed", "large", "small"]


def test_totals_are_joined_by_module():
    rows = with_totals([error("a", 1e-3), error("b", 1e-3)], {"a": (2e-3, 64)})
    assert [(row.total_rel_l2, row.sampled) for row in rows] == [(2e-3, 64), (None, 0)]
