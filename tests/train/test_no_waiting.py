"""In a step the host never waits for the GPU: while it waits, nothing is queued, and then the GPU waits for the host.

Without a GPU the step runs on fake CUDA tensors, which have shapes and devices but no values. What makes the host
wait is then visible as an operation: a value that is read, or a copy between host and device. Torch's backward pass
needs a real device and is left out there; the last test has one.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from steps import CLASSES, LOSSES, cut, random_batch, random_images
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from vivi.data.loader import MicroBatch, StepInput
from vivi.model.vivi import build_model
from vivi.recipes import Recipe
from vivi.runtime.distributed import World
from vivi.train.loop import Trainer
from vivi.train.step import compute_gradients

GPU = torch.device("cuda", 0)
needs_cuda_build = pytest.mark.skipif(
    not torch.backends.cuda.is_built() or torch.cuda.is_available(), reason="needs torch with CUDA, but no GPU"
)


class Waits(TorchDispatchMode):
    """Notes the lines of vivi that make the host wait."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        target = (kwargs or {}).get("device")
        copies = op is torch.ops.aten._to_copy.default and target is not None and target != args[0].device
        if copies or op is torch.ops.aten._local_scalar_dense.default:
            lines = [frame.line or "" for frame in traceback.extract_stack() if "/vivi/" in frame.filename]
            self.lines += lines[-1:] or ["outside of vivi"]
        return op(*args, **(kwargs or {}))


def on_gpu(batch: MicroBatch, upload: Callable[[Tensor], Tensor] = Tensor.cuda) -> MicroBatch:
    labels = None if batch.labels is None else upload(batch.labels)
    return MicroBatch(upload(batch.frames).float(), upload(batch.uniforms), labels)


@contextmanager
def fake_gpu() -> Iterator[FakeTensorMode]:
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a fake tensor cannot be put into a real one
    try:
        with FakeTensorMode() as mode, torch.backends.cudnn.flags(enabled=False), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own LSTM asks where its weights lie
            yield mode
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)


def lines_that_wait(recipe: Recipe, at_once: int) -> list[str]:
    """Takes a step of the recipe on a fake GPU, `at_once` cores to a micro-batch."""
    cores = range(recipe.batch.cores)
    model = build_model(recipe, CLASSES if recipe.images.count else 0).train()
    videos = list(cut(random_batch(recipe), cores, at_once)) if recipe.batch.videos else []
    images = list(cut(random_images(recipe), cores, at_once)) if recipe.images.count else []
    with fake_gpu() as mode:

        def fake(values: Tensor) -> Tensor:
            tensor: Tensor = mode.from_tensor(values)
            return tensor.to(GPU)

        model._apply(fake)
        videos, images = ([on_gpu(batch, fake) for batch in batches] for batches in (videos, images))
        waits = Waits()
        with pytest.MonkeyPatch.context() as patch, waits:
            patch.setattr(Tensor, "backward", lambda loss: None)
            patch.setattr(torch.autograd, "grad", lambda loss, inputs: [torch.zeros_like(x) for x in inputs])
            compute_gradients(model, videos, images, recipe, World(GPU))
    return waits.lines


@needs_cuda_build
@pytest.mark.parametrize("at_once", [1, 4])
@pytest.mark.parametrize("name", LOSSES)
def test_the_host_does_not_wait_for_the_gpu_in_a_step(name: str, at_once: int) -> None:
    assert lines_that_wait(LOSSES[name], at_once) == []


@needs_cuda_build
@pytest.mark.parametrize("name", ["list index", "copy", "new tensor", "value"])
def test_what_waits_is_noticed(name: str) -> None:
    with fake_gpu(), Waits() as waits:
        values = torch.zeros(3, device=GPU)
        if name == "list index":
            values[[0, 2]]
        elif name == "copy":
            values.cpu()
        elif name == "new tensor":
            torch.tensor([1.0], device=GPU)
        else:
            with pytest.raises(DataDependentOutputException):
                values.sum().item()
    assert len(waits.lines) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", LOSSES)
def test_a_real_step_does_not_wait(name: str) -> None:
    recipe = LOSSES[name]
    cores = range(recipe.batch.cores)
    trainer = Trainer(build_model(recipe, CLASSES if recipe.images.count else 0).train().cuda(), recipe, World(GPU))

    def take_step() -> None:
        videos = list(cut(random_batch(recipe), cores, 2)) if recipe.batch.videos else []
        images = list(cut(random_images(recipe), cores, 2)) if recipe.images.count else []
        step = StepInput(3, iter([on_gpu(batch) for batch in videos]), iter([on_gpu(batch) for batch in images]))
        torch.cuda.set_sync_debug_mode("error")
        try:
            trainer.step(step)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    take_step()
    take_step()  # with momentum
