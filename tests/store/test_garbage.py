import gc

import pytest

from ampbench.store.lines import no_garbage_collection


def test_the_collector_is_kept_out_and_let_in_again_also_after_an_error() -> None:
    def fails() -> None:
        with no_garbage_collection():
            assert not gc.isenabled()
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with no_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
