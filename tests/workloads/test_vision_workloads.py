"""Diffusion reads what is as noisy as the timestep says; the detector learns and finds what torchvision's FCOS does."""

import copy
import math

import numpy as np
import pytest
import torch
from built_workloads import HERE, build, forward

from ampbench.workloads.vision import TIMESTEPS, Timesteps


def test_latents_and_velocity_lead_back_to_image_and_noise():
    workload = build("diffusion_transformer", batch_size=64)
    latents, timesteps, _ = workload.inputs
    share = timesteps.double().view(-1, 1, 1, 1) / 1000
    image, noise = latents - share * workload.targets, latents + (1 - share) * workload.targets
    for whole in (16 * image, 16 * noise):
        assert (whole - whole.round()).abs().max() < 1e-4
        assert whole.round().std() == pytest.approx(64 / math.sqrt(12), rel=0.02)
    assert timesteps.min() >= 1
    assert timesteps.max() <= 1000


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_no_half_precision_loses_the_velocity_or_the_noise(dtype):
    for name in ("diffusion_transformer", "diffusion_unet"):
        targets = build(name).targets
        assert torch.equal(targets.to(dtype).float(), targets)


def test_latents_of_the_unet_are_as_noisy_as_the_published_schedule_says():
    workload = build("diffusion_unet", batch_size=256)
    latents, timesteps = workload.inputs
    kept = np.cumprod(1 - np.linspace(1e-4, 0.02, TIMESTEPS))[timesteps.numpy()]
    image = (latents.double().numpy() - np.sqrt(1 - kept)[:, None, None, None] * workload.targets.numpy()) / np.sqrt(
        kept
    )[:, None, None, None]
    early = kept > 0.01  # of the rest, fp32 has little left
    assert np.abs(image[early]).max() < math.sqrt(3) + 1e-4, "uniform, of variance one"
    assert image[early].std() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_late_timesteps_are_told_apart_in_half_precision(dtype):
    module = Timesteps(64, 32)
    for layer in (module.up, module.down):
        torch.nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
    timesteps = torch.tensor([996, 997, 998, 999])
    with torch.no_grad():
        exact = copy.deepcopy(module).double()(timesteps)
        half = copy.deepcopy(module).to(dtype)(timesteps)
    apart = (exact[1:] - exact[:-1]).norm(dim=1)
    assert half.dtype == dtype
    assert ((half.double() - exact).norm(dim=1)[1:] < apart / 4).all()


detection = pytest.mark.skipif("detector" not in HERE, reason="needs torchvision")


@detection
@pytest.mark.parametrize("image", [128, 256])
def test_the_detector_learns_by_the_losses_of_torchvision_with_its_matching(image):
    from torchvision.models.detection.image_list import ImageList

    workload = build("detector", image=image, batch_size=2, regions=16)
    fcos, images = workload.module.fcos, workload.inputs
    with torch.no_grad():
        features = list(fcos.backbone(images).values())
        anchors = fcos.anchor_generator(ImageList(images, [(image, image)] * 2), features)
        output = workload.module.train()(images)
        boxes, labels, matched = workload.targets
        given = [{"boxes": one.float(), "labels": its} for one, its in zip(boxes, labels, strict=True)]
        levels = [each.shape[2] * each.shape[3] for each in features]
        expected = sum(fcos.compute_loss(given, output.dense(), anchors, levels).values())
        assert workload.loss(output, workload.targets).item() == pytest.approx(expected.item(), rel=1e-6)
    assert (matched >= 0).sum() > 16
    assert torch.equal(anchors[0], workload.module.points.float())


@detection
def test_the_detector_finds_what_the_whole_of_torchvisions_finds():
    from torchvision.models.detection.transform import GeneralizedRCNNTransform

    workload = build("detector", batch_size=2)
    whole = workload.module.eval().fcos
    whole.transform = GeneralizedRCNNTransform(128, 128, [0.0] * 3, [1.0] * 3)
    with torch.no_grad():
        found = workload.module(workload.inputs).found
        expected = whole(list(workload.inputs))
    for one, other in zip(found, expected, strict=True):
        assert len(one.labels) > 10
        assert torch.equal(one.labels, other["labels"])
        torch.testing.assert_close(one.scores, other["scores"])
        torch.testing.assert_close(128 * one.boxes, other["boxes"])


@detection
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_boxes_are_found_in_fp32_where_the_detector_is_in_half(dtype):
    workload = build("detector")
    with torch.no_grad():
        output = forward(copy.deepcopy(workload.module).to(dtype).eval(), workload.inputs.to(dtype))
    assert {getattr(output, name).dtype for name in workload.outputs} == {dtype}
    assert {each.dtype for one in output.found for each in (one.boxes, one.scores)} == {torch.float32}
    assert len(output.found[0].boxes) > 10
