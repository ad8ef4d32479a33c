import pytest

from ampbench.records.ranges import ModuleError, ranked


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
    assert error("a", 3e-3, 5e-3).inherited == pytest.approx(4e-3)
    assert error("b", 5e-3, 3e-3).inherited == 0.0
    assert error("c", None, 1.0).inherited is error("d", 1.0).inherited is None


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
