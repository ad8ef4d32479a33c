from ampbench.records.ranges import ModuleError, ranked


def error(module, own=None, overflowed=0, elements=100, **fields):
    return ModuleError(
        module=module,
        kind="Linear",
        elements=elements,
        own_rel_l2=own,
        overflowed=overflowed,
        **fields,
    )


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
