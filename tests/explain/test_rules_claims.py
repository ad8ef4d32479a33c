import pytest

from ampbench.explain.dtypes import is_present
from ampbench.explain.rules.documented import DEFAULT_DTYPES, gradient_scaler, new_spelling, old_spelling, probe_claims

ABSENT = [device for device in ("xpu", "cuda") if not is_present(device)]


def by_name(device):
    return {(claim.name, claim.source): claim for claim in probe_claims(device)}


def test_default_dtypes_are_pytorchs_and_the_older_xpu_document_is_wrong_about_them():
    for device, dtype in DEFAULT_DTYPES.items():
        assert by_name(device)["default dtype", "pytorch_page"].found == dtype
    older = by_name("xpu")["default dtype", "xpu_reference"]
    assert (older.said, older.found, older.holds) == ("bfloat16", "float16", False)


def test_the_older_documents_spelling_is_not_there_and_the_newer_one_is():
    assert old_spelling().holds is False
    cpu = new_spelling("cpu")
    assert (cpu.found, cpu.holds, cpu.how) == ("entered", True, "device")


def test_inference_on_an_absent_xpu_is_observed_on_fake_tensors_in_both_dtypes():
    if is_present("xpu"):
        pytest.skip("there is an XPU")
    claims = by_name("xpu")
    for dtype in ("float16", "bfloat16"):
        claim = claims[f"inference {dtype}", "xpu_reference"]
        assert (claim.found, claim.holds, claim.how) == (f"conv2d gives {dtype}", True, "fake tensors")


@pytest.mark.parametrize("device", ABSENT)
def test_what_only_a_device_can_tell_is_marked_and_not_guessed(device):
    for claim in (*probe_claims(device), new_spelling(device), gradient_scaler(device)):
        if claim.name.startswith(("training", "spelling", "GradScaler")):
            assert (claim.holds, claim.how) == (None, "not observed")


def test_the_older_documents_claim_on_training_is_about_both_dtypes():
    claims = by_name("xpu")
    assert claims["training bfloat16", "xpu_reference"].said == "bfloat16 is supported for training"
    assert claims["training float16", "xpu_reference"].said == "float16 is not supported for training"
