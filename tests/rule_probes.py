"""Made-up observations and calls, for the tests of the rules probe."""

from ampbench.records.rules import RuleCall, RuleObservation, RuleProbe, RuleTrial


def call(*computed, outputs=(), casts=(), error=None):
    return RuleCall(computed=sorted(computed), outputs=list(outputs or computed[:1]), casts=list(casts), error=error)


def trial(autocast, plain):
    return RuleTrial(inputs=["float32"], autocast=autocast, plain=plain)


def observation(op="aten::thing", dtype="bfloat16", **given):
    there = trial(call("float32"), call("float32"))
    fields = {"device": "xpu", "how": "device", "registered": True, "trials": {"fp32": there, "lower": there}}
    return RuleObservation(op=op, dtype=dtype, **{**fields, **given})


def probe(*observations, device="xpu", dtypes=("bfloat16",)):
    return RuleProbe(device=device, dtypes=list(dtypes), observations=list(observations))
