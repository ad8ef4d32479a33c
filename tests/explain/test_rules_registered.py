from ampbench.explain.rules.documented import registered_ops


def test_the_dispatcher_knows_the_rules_of_every_device_type_on_every_build():
    cpu, cuda, xpu = (registered_ops(device) for device in ("cpu", "cuda", "xpu"))
    assert {"aten::addmm", "aten::linear", "aten::conv2d"} <= cpu & cuda & xpu
    assert "aten::softmax.int" in cuda & xpu
    assert "aten::softmax.int" not in cpu
    assert len(xpu) > 100


def test_ops_that_fall_through_and_other_libraries_ops_are_not_rules():
    for device in ("cpu", "cuda", "xpu"):
        ops = registered_ops(device)
        assert all(name.startswith("aten::") for name in ops)
        assert not ops & {"aten::relu", "aten::addmm_", "aten::addmm.out", "aten::_to_copy"}
