"""Passes of the study of input storage: an input whose first op accepts half, and one whose op runs in fp32."""

from msgspec import structs

from ampbench.records.case import Case
from ampbench.studies.input_storage import InputUse, StoragePass, StoredInputs

FREE_USE = InputUse(name="x", operation="aten.addmm", module="0")
LOSSY_USE = InputUse(name="x", operation="aten.native_layer_norm", module="norm", read_in_fp32="aten.native_layer_norm")


def stored_inputs(dtype: str, **changes: object) -> StoredInputs:
    """Return inputs in a dtype: with fp32 five casts a step, with another four."""
    full = dtype == "fp32"
    values: dict[str, object] = {
        "dtype": dtype,
        "stored_bytes": 4096 if full else 2048,
        "casts": 5 if full else 4,
        "cast_bytes": 600 if full else 500,
        "samples": [[(2e-3 if full else 1e-3) + build * 1e-6] for build in range(8)],
        "peak_bytes": 9000 if full else 8000,
        "output_rel_l2": 1e-3,
    }
    return StoredInputs(**{**values, **changes})  # type: ignore[arg-type]


def storage_pass(case: Case, **changes: object) -> StoragePass:
    """Return the pass of a case in which nothing is lost."""
    low = "fp16" if case.precision == "fp16_autocast" else "bf16"
    found = StoragePass(
        case_id=case.case_id,
        uses=[FREE_USE],
        full=stored_inputs("fp32"),
        low=stored_inputs(low),
        identical=True,
        repeatable=True,
        exact=False,
    )
    return structs.replace(found, **changes)


def lossy_pass(case: Case, **changes: object) -> StoragePass:
    """Return the pass of a case in which information is lost: twice the output's error, thrice the gradients'."""
    return storage_pass(
        case,
        **{
            "uses": [LOSSY_USE],
            "full": stored_inputs("fp32", casts=4, loss_abs_error=1e-4, grad_rel_l2=2e-3),
            "low": stored_inputs("bf16", casts=5, output_rel_l2=2e-3, loss_abs_error=2e-4, grad_rel_l2=6e-3),
            "identical": False,
            **changes,
        },
    )
