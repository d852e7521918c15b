"""Fine-tuning: the steps, their images, what is resumed, and what is judged."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from small_tasks import write_task
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms.v2 import functional as vision

from vivi.evaluate.encoders import Model, load_model
from vivi.evaluate.features import Pictures, read_image
from vivi.evaluate.finetune import Tuner, Tuning, batch_order, learning_rate
from vivi.evaluate.results import Setting
from vivi.evaluate.tasks.examples import Examples, Task
from vivi.evaluate.tasks.lists import read_task
from vivi.runtime.errors import UserError

CPU = torch.device("cpu")
SIZE = 32


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return read_task(
        write_task(tmp_path_factory.mktemp("tasks") / "bars", counts={"train800": 26, "val200": 9, "test": 21})
    )


@pytest.fixture
def model() -> Model:
    return load_model("untrained:test_resnet", size=SIZE)


def pictures(examples: Examples) -> Pictures:
    return Pictures(examples, SIZE, False, CPU, threads=2)


def watched(seen: list[int]) -> Callable[[int], bool]:
    """Notes the steps, and never asks to stop."""

    def note(step: int) -> bool:
        seen.append(step)
        return False

    return note


def slow_rate(step: int, lr: float, steps: int) -> float:
    if step < int(0.3 * steps):
        return lr
    if step < int(0.6 * steps):
        return lr / 10
    return lr / 100 if step < int(0.9 * steps) else lr / 1000


@pytest.mark.parametrize(("lr", "steps"), [(0.1, 2500), (0.01, 10000), (0.1, 7), (0.5, 1)])
def test_the_learning_rate_falls_at_30_60_and_90_percent(lr: float, steps: int) -> None:
    for step in range(steps):
        assert learning_rate(step, Setting(lr, steps)) == pytest.approx(slow_rate(step, lr, steps))
    if steps == 2500:
        falls = [s for s in range(1, steps) if slow_rate(s, lr, steps) < slow_rate(s - 1, lr, steps)]
        assert falls == [750, 1500, 2250]


@pytest.mark.parametrize(("images", "batch", "steps"), [(10, 4, 13), (10, 10, 3), (7, 512, 4), (5, 3, 1), (3, 1, 8)])
def test_every_image_comes_once_before_any_comes_again(images: int, batch: int, steps: int) -> None:
    tuning = Tuning(Setting(0.1, steps), seed=3, batch=batch)
    order = list(batch_order(images, tuning))
    assert [len(part) for part in order] == [min(batch, images)] * steps
    seen = torch.cat(order).tolist()
    for first in range(0, len(seen), images):
        epoch = seen[first : first + images]
        assert len(set(epoch)) == len(epoch) and set(epoch) <= set(range(images))
    for start in range(steps):
        assert all(map(torch.equal, batch_order(images, tuning, start), order[start:]))
    other = torch.cat(list(batch_order(images, Tuning(Setting(0.1, steps), seed=4, batch=batch)))).tolist()
    assert other != seen or images * steps < 8


def by_hand(model: Model, task: Task, tuning: Tuning) -> float:
    """The protocol in plain torch, image by image where it can be."""

    def tensor(examples: Examples) -> Tensor:
        images = [
            vision.resize(read_image(Path(str(path))), [SIZE, SIZE], antialias=False) for path in examples.images
        ]
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (model.mean, model.std))
        return torch.stack([(image / 255 - mean) / std for image in images])

    train, test = tensor(task.final), tensor(task.test)
    head = nn.Linear(model.features, task.classes)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    network = nn.Sequential(model.backbone, head).train()
    velocity = [torch.zeros_like(parameter) for parameter in network.parameters()]
    for step, indices in enumerate(batch_order(len(train), tuning)):
        network.zero_grad()
        F.cross_entropy(network(train[indices]), task.final.labels[indices]).backward()
        rate = slow_rate(step, tuning.setting.lr, tuning.setting.steps)
        with torch.no_grad():
            for parameter, speed in zip(network.parameters(), velocity, strict=True):
                assert parameter.grad is not None
                speed.mul_(0.9).add_(parameter.grad)
                parameter.sub_(rate * speed)
    network.eval()
    with torch.no_grad():
        guesses = [int(network(image[None]).argmax()) for image in test]
    hits: int = sum(map(operator.eq, guesses, task.test.labels.tolist()))
    return hits / len(test)


@pytest.mark.parametrize(("lr", "steps", "batch"), [(0.05, 12, 16), (0.02, 7, 512)])
def test_fine_tuning_is_that_of_plain_torch(model: Model, task: Task, lr: float, steps: int, batch: int) -> None:
    tuning = Tuning(Setting(lr, steps), seed=1, batch=batch)
    tuner = Tuner(model, CPU)
    found = tuner.accuracy(pictures(task.final), pictures(task.test), task.classes, tuning)
    weights = {name: tensor.clone() for name, tensor in tuner.backbone.state_dict().items()}
    slow = load_model("untrained:test_resnet", size=SIZE)
    assert found == by_hand(slow, task, tuning)
    for name, tensor in slow.backbone.state_dict().items():
        assert torch.allclose(weights[name], tensor, rtol=1e-3, atol=1e-4), name


def test_a_network_learns_the_task(model: Model, task: Task) -> None:
    tuning = Tuning(Setting(0.05, 60), batch=16)
    accuracy = Tuner(model, CPU).accuracy(pictures(task.final), pictures(task.test), task.classes, tuning)
    assert accuracy > 0.8  # chance is 0.25


def test_each_run_starts_from_the_weights_that_came(model: Model, task: Task) -> None:
    tuner, tuning = Tuner(model, CPU), Tuning(Setting(0.05, 5), batch=16)
    train, test = pictures(task.sweep), pictures(task.validation)
    runs = [tuner.accuracy(train, test, task.classes, tuning)]
    first = {name: tensor.clone() for name, tensor in tuner.backbone.state_dict().items()}
    tuner.accuracy(train, test, 9, Tuning(Setting(0.2, 3), seed=5, batch=8))
    runs.append(tuner.accuracy(train, test, task.classes, tuning))
    assert runs[0] == runs[1]
    assert all(torch.equal(tensor, first[name]) for name, tensor in tuner.backbone.state_dict().items())


@pytest.mark.parametrize("stop_at", [1, 4, 8])
def test_a_stopped_run_goes_on_with_the_same_bits(model: Model, task: Task, tmp_path: Path, stop_at: int) -> None:
    tuning = Tuning(Setting(0.05, 9), batch=16)
    tuner = Tuner(model, CPU)
    train, test = pictures(task.sweep), pictures(task.validation)
    whole = tuner.accuracy(train, test, task.classes, tuning)
    weights = {name: tensor.clone() for name, tensor in tuner.backbone.state_dict().items()}
    checkpoints = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        tuner.accuracy(train, test, task.classes, tuning, checkpoints, 1e9, lambda step: step == stop_at)
    seen: list[int] = []
    again = tuner.accuracy(train, test, task.classes, tuning, checkpoints, 1e9, watched(seen))
    assert seen == list(range(stop_at + 1, 10))
    assert again == whole and not checkpoints.exists()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in tuner.backbone.state_dict().items())


def test_a_damaged_checkpoint_of_a_run_only_costs_its_steps(model: Model, task: Task, tmp_path: Path) -> None:
    tuning, train = Tuning(Setting(0.05, 4), batch=16), pictures(task.sweep)
    tuner = Tuner(model, CPU)
    with pytest.raises(KeyboardInterrupt):
        tuner.accuracy(train, train, task.classes, tuning, tmp_path / "run", 1e9, lambda step: step == 2)
    (file,) = (tmp_path / "run").iterdir()
    file.write_bytes(file.read_bytes()[:1000])
    seen: list[int] = []
    tuner.accuracy(train, train, task.classes, tuning, tmp_path / "run", 1e9, watched(seen))
    assert seen == [1, 2, 3, 4]


def test_a_checkpoint_of_a_later_version_is_left_alone(model: Model, task: Task, tmp_path: Path) -> None:
    tuning, train = Tuning(Setting(0.05, 4), batch=16), pictures(task.sweep)
    tuner = Tuner(model, CPU)
    later = tmp_path / "run" / "step-00000002.safetensors"
    later.parent.mkdir()
    about = {"format_version": 99, "step": 2, "checksum": "0"}
    save_file({"network.weight": torch.zeros(2)}, later, {"vivi": json.dumps(about)})
    content = later.read_bytes()
    with pytest.raises(UserError, match="has format version 99"):
        tuner.accuracy(train, train, task.classes, tuning, tmp_path / "run", 1e9, watched([]))
    assert later.read_bytes() == content


def test_micro_batches_add_up_to_the_batch_where_no_statistics_are_taken(task: Task) -> None:
    accuracies, weights = [], []
    for micro_batch in (0, 5):
        tuner = Tuner(load_model("untrained:test_vit", size=160), CPU)
        data = Pictures(task.sweep, 160, False, CPU, threads=2)
        tuning = Tuning(Setting(0.01, 2), batch=16, micro_batch=micro_batch)
        accuracies.append(tuner.accuracy(data, data, task.classes, tuning))
        weights.append(torch.cat([p.detach().flatten() for p in tuner.backbone.parameters()]))
    assert accuracies[0] == accuracies[1]
    assert torch.allclose(weights[0], weights[1], atol=1e-5)


def test_a_run_that_diverges_ends_early_and_is_judged_as_it_is(model: Model, task: Task) -> None:
    seen: list[int] = []
    tuning = Tuning(Setting(1e20, 400), batch=16)
    data = pictures(task.sweep)
    found = Tuner(model, CPU).accuracy(data, data, 4, tuning, asked_to_stop=watched(seen))
    assert len(seen) < 100 and 0 <= found < 0.7


@pytest.mark.parametrize("share", [0, 0.2])
def test_images_are_the_same_whether_they_stay_or_are_read_as_they_go(
    task: Task, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vivi.evaluate.features.SHARE", share)
    data = pictures(task.final)
    assert (data.resident is None) == (share == 0)
    order = [torch.tensor([3, 0, 3]), torch.tensor([34]), torch.arange(20)]
    for indices, (images, labels) in zip(order, data.batches(order), strict=True):
        expected = [
            vision.resize(read_image(Path(str(task.final.images[i]))), [SIZE, SIZE], antialias=False).permute(1, 2, 0)
            for i in indices.tolist()
        ]
        assert torch.equal(images, torch.stack(expected))
        assert torch.equal(labels, task.final.labels[indices])


def test_resizing_is_bilinear_between_pixel_centres_without_a_filter() -> None:
    """As tf.image.resize does by default: each new pixel looks at four old ones, however large the image is."""
    random = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (3, 13, 29), dtype=torch.uint8, generator=random)
    data = Pictures(Examples([image], torch.tensor([0])), 5, False, CPU, threads=1)
    assert data.resident is not None
    for y in range(5):
        for x in range(5):
            old_y, old_x = (y + 0.5) * 13 / 5 - 0.5, (x + 0.5) * 29 / 5 - 0.5
            top, left = int(old_y), int(old_x)
            down, right = old_y - top, old_x - left
            corners = image[:, top : top + 2, left : left + 2].double()
            value = (corners[:, 0, 0] * (1 - right) + corners[:, 0, 1] * right) * (1 - down)
            value += (corners[:, 1, 0] * (1 - right) + corners[:, 1, 1] * right) * down
            assert (data.resident[0, y, x].double() - value).abs().max() <= 1
