"""The compiled backbone computes what the eager one does, and collects the same statistics."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor

from vivi.model.architecture import Architecture
from vivi.model.encoder import Encoder

pytestmark = pytest.mark.skipif(not (shutil.which("c++") or shutil.which("g++")), reason="needs a C++ compiler")

# Cores, frames of each, and whether it is a pass without gradients, which collects no statistics: as in training
# where InfoNCE is across cores. The number of cores goes up and down again.
PASSES = [(1, 6, False), (3, 2, True), (3, 2, False), (1, 6, True), (1, 6, False), (3, 2, True), (3, 2, False)]


def thin() -> Encoder:
    """Two blocks of a ResNet-18, as compiling takes a while; in double precision, where a difference is no
    rounding."""
    torch.manual_seed(0)
    architecture = Architecture("resnetv2_18", {"width_factor": 0.125, "layers": (1, 1)}, 32)
    return Encoder(architecture, architecture.create(), bn_momentum=0.3).double().train()


def forward(encoder: Encoder, frames: Tensor, first_pass: bool) -> Tensor:
    """All cores at once: on a CPU the encoder itself computes core by core."""
    if not first_pass:
        return encoder._forward_cores(frames)
    with torch.no_grad(), encoder.without_collecting_statistics():
        return encoder._forward_cores(frames)


def test_a_compiled_backbone_computes_what_an_eager_one_does_for_any_number_of_cores() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    eager, compiled = thin(), thin()
    compiled.backbone.compile(dynamic=False, fullgraph=True)
    generator = torch.Generator().manual_seed(0)
    collected = 0
    for cores, count, first_pass in PASSES:
        frames = torch.rand(cores, count, 3, 32, 32, generator=generator, dtype=torch.float64) * 2 - 1
        before = [total.clone() for total in compiled.collected_statistics()]
        h, expected = (forward(encoder, frames, first_pass) for encoder in (compiled, eager))
        torch.testing.assert_close(h, expected)
        after = compiled.collected_statistics()
        assert all(torch.equal(old, new) == first_pass for old, new in zip(before, after, strict=True))
        for ours, theirs in zip(after, eager.collected_statistics(), strict=True):
            torch.testing.assert_close(ours, theirs)
        if not first_pass:
            collected += cores
            towards = torch.randn(h.shape, generator=generator, dtype=torch.float64)
            for our, their in zip(gradients(compiled, h, towards), gradients(eager, expected, towards), strict=True):
                torch.testing.assert_close(our, their)
    for encoder in (compiled, eager):
        encoder.update_statistics(collected)
    for name, tensor in compiled.state_dict().items():
        torch.testing.assert_close(tensor, eager.state_dict()[name])
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == len({*PASSES}), "a graph for each kind of pass, and none anew"


def gradients(encoder: Encoder, h: Tensor, towards: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad((h * towards).sum(), list(encoder.parameters()))
