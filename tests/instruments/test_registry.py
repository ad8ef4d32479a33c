"""What rows name: each place exists, and a page without runs has nothing of any instrument."""

import subprocess
import sys

import pytest

from ampbench.instruments import registry
from ampbench.present.page import Held
from ampbench.records.kinds import KINDS, named

PLACES = [place for kind in KINDS.values() for place in (kind.document, kind.part, kind.told) if place]
PLACES += [place for row in registry.BESIDE for place in (row.sections, row.part)]


@pytest.mark.parametrize("place", PLACES)
def test_what_a_row_names_is_a_function_in_the_folder_of_an_instrument(place: str) -> None:
    assert place.startswith("ampbench.instruments.")
    assert callable(named(place))


def test_documents_need_neither_torch_nor_pandas() -> None:
    code = (
        "import sys; from ampbench.records.kinds import KINDS, named\n"
        "assert all([named(kind.document) for kind in KINDS.values()])\n"
        "sys.exit(' '.join({'torch', 'pandas'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "\n"


@pytest.mark.parametrize("place", [*(kind.part for kind in KINDS.values()), *(row.part for row in registry.BESIDE)])
def test_an_instrument_has_no_part_of_a_page_without_runs(place: str) -> None:
    assert registry.part(place, Held()) is None
