"""Ceilings: what devices attain at best, in which dtype, and what of the vendor's promises that is."""

from dataclasses import replace

from ampbench.blocks import as_sentence
from ampbench.records.studies import COPY
from ampbench.report.material import Material
from ampbench.report.studied import Ceilings, device_ceilings
from ampbench.report.views.part import Detail, Part, cut, told_part
from ampbench.report.views.studies.ceiling_charts import COPIES_DRAWING, FLOPS_DRAWING, operated
from ampbench.report.views.studies.drawing import drawn
from ampbench.report.views.studies.telling import Overview, detail_of, line_of, with_overview
from ampbench.studied.ceilings.blocks import ceilings_section
from ampbench.studied.ceilings.sentences import ceilings_said


def ceilings(material: Material) -> Part | None:
    """Return the devices of which ceilings were measured."""
    found = device_ceilings(material)
    if not found:
        return None
    each = operated(found)
    flops = drawn([one for one in each if one.operation != COPY], FLOPS_DRAWING)
    copies = drawn([one for one in each if one.operation == COPY], COPIES_DRAWING)
    part = told_part(
        found,
        (),
        id="ceilings",
        title="Ceilings",
        said=[],
        detail=_detail,
        drawn=([*flops[0], *copies[0]], {**flops[1], **copies[1]}),
    )
    rows = [(one.name, [[as_sentence(said) for said in ceilings_said(one.device, one.ceilings)]]) for one in found]
    overview = Overview(
        caption="What each device attains at best", headers=["attained"], rows=rows, first="device", wide={"attained"}
    )
    return with_overview(part, overview)


def _detail(one: Ceilings) -> Detail:
    """Return what a device attains, with all sizes and what is remarked on them folded."""
    short = ceilings_section(one.device, one.ceilings)
    whole = ceilings_section(one.device, one.ceilings, everything=True)
    more = [block for block in whole.blocks if block not in short.blocks]
    folded = {
        "Every size": [cut(block) for block in more if block.headers],
        "Remarks": [line_of(block) for block in more if not block.headers],
    }
    told = detail_of(one.name, short)
    return replace(told, folded={title: blocks for title, blocks in folded.items() if blocks})
