"""RetinaNet on an encoder: torchvision's heads, anchors and post-processing; batches and losses of our own.

The losses are torchvision's numbers, computed for the whole batch at once: no step waits for the GPU to tell how many
anchors are positive, and the focal loss, of which COCO's 91 classes make 300 million terms a batch at 800 × 1333,
is taken with its slope in one pass per image instead of some fifty kernels and their copies. Anchors are float32 also
where the network runs in bfloat16 (torchvision rounds them then, by up to 8 pixels).

What is standard here is torchvision's retinanet_resnet50_fpn. RetinaNet for TPUs (tensorflow/tpu,
models/official/retinanet) differs:

                      here                                     TPU
    images            short side 800, long side up to 1333     640 × 640
    positive anchors  IoU ≥ 0.5; [0.4, 0.5) is ignored         IoU ≥ 0.5; all others are background
    focal loss        γ = 2, α = 0.25                          γ = 1.5, α = 0.25
    box loss          L1, weight 1                             Huber, δ = 0.1, weight 50, also divided by 4
    divided by        positives of an image, then images       positives of the batch + 1
    norms             none in pyramid and heads                batch norm in both
    kept              1000 a level, then 100 an image          5000, then 100

torchvision keeps 300 an image; COCO's AP counts 100 at most, and so do we. All give every object its best anchor, at
any IoU; an object that overlaps no anchor has none here, while torchvision gives it all that it does not overlap.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import convert_sync_batchnorm
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.models.detection import RetinaNet
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import box_iou

from vivi.evaluate.detection.batches import Target
from vivi.evaluate.detection.pyramid import Maps, Pyramid
from vivi.evaluate.detection.score import MOST
from vivi.evaluate.detection.settings import Tuned
from vivi.evaluate.encoders import Model
from vivi.model.architecture import memory_format
from vivi.model.features import evaluation_mode

POSITIVE, BACKGROUND = 0.5, 0.4  # IoU from which on an anchor is an object, and below which it is none
ALPHA = 0.25  # of the focal loss; its γ of 2 is written out below

Size = tuple[int, int]  # height and width
Outputs = dict[str, Tensor]  # cls_logits (n, anchors, classes), bbox_regression (n, anchors, 4)


class Detector(nn.Module):
    """Images of any sizes -> losses, or detections. It has a copy of the model's encoder; its other layers depend on
    torch's seed."""

    def __init__(self, model: Model, classes: int, tuned: Tuned, processes: int = 1) -> None:
        super().__init__()
        backbone = copy.deepcopy(model.backbone)
        if tuned.norm == "synchronised" and processes > 1:
            backbone = convert_sync_batchnorm(backbone)
        maps = Maps(backbone, model.source)
        self.multiple, self.min_size, self.max_size = maps.multiple, tuned.min_size, tuned.max_size
        self.retina = RetinaNet(Pyramid(maps), classes, self.min_size, self.max_size, detections_per_img=MOST)
        self.precision = torch.float32  # of the network; all else is float32
        self.memory_format = memory_format(backbone)
        self.to(memory_format=self.memory_format)
        self.norms = [module for module in backbone.modules() if isinstance(module, _BatchNorm)]
        self.frozen = self.norms if tuned.norm == "frozen" else []
        for norm in self.frozen:
            norm.requires_grad_(False)
        self.mean, self.std = (  # of pixels between 0 and 255
            nn.Buffer(255 * torch.tensor(values).view(1, 3, 1, 1), persistent=False)
            for values in (model.mean, model.std)
        )
        self.train()

    def train(self, mode: bool = True) -> Detector:
        super().train(mode)
        for norm in self.frozen:
            norm.eval()
        return self

    def forward(self, images: list[Tensor], targets: list[Target], beside: Sequence[Size] = ()) -> dict[str, Tensor]:
        """Images (3, h, w), uint8, and their objects -> the two losses.

        `beside` are heights and widths of images that belong to the same batch: what an image is padded to then does
        not depend on how a batch is cut into pieces.
        """
        sizes, anchors, outputs = self._network(images, beside)
        boxes = [_scaled(t["boxes"], i.shape[1:], size) for t, i, size in zip(targets, images, sizes, strict=True)]
        return losses(outputs, torch.cat(anchors), boxes, [target["labels"] for target in targets])

    @torch.no_grad()
    def detect(self, images: list[Tensor], beside: Sequence[Size] = ()) -> list[Target]:
        """For each image: boxes (m, 4) in its own pixels, labels (m,) and scores (m,), the best first."""
        with evaluation_mode(self):
            sizes, anchors, outputs = self._network(images, beside)
        lengths = [len(one) for one in anchors]
        by_level = {name: list(output.float().split(lengths, dim=1)) for name, output in outputs.items()}
        found: list[Target] = self.retina.postprocess_detections(by_level, [anchors] * len(images), sizes)
        for one, image, size in zip(found, images, sizes, strict=True):
            one["boxes"] = _scaled(one["boxes"], size, image.shape[1:])
        return found

    def _network(self, images: list[Tensor], beside: Sequence[Size]) -> tuple[list[Size], list[Tensor], Outputs]:
        """Sizes of the images in the batch; the anchors of each level, the same for every image; and outputs."""
        batch, sizes = self._batch(images, beside)
        with torch.autocast(batch.device.type, self.precision, enabled=self.precision != torch.float32):
            levels = list(self.retina.backbone(batch).values())
            outputs = self.retina.head(levels)
        grids = [torch.empty((1, 1, *level.shape[2:]), device=batch.device) for level in levels]  # in float32
        height, width = batch.shape[2:]
        anchors = self.retina.anchor_generator(ImageList(batch[:1], [(height, width)]), grids)[0]
        each = self.retina.anchor_generator.num_anchors_per_location()  # of a level
        return sizes, list(anchors.split([grid.numel() * n for grid, n in zip(grids, each, strict=True)])), outputs

    def _batch(self, images: list[Tensor], beside: Sequence[Size]) -> tuple[Tensor, list[Size]]:
        """Resized, in the upper left corners of one normalised batch; and their sizes there."""
        sizes = [self._resized(*image.shape[1:]) for image in images]
        largest = map(max, zip(*sizes, *(self._resized(*shape) for shape in beside), strict=True))
        height, width = (math.ceil(side / self.multiple) * self.multiple for side in largest)
        batch = torch.empty(
            (len(images), 3, height, width), device=images[0].device, memory_format=self.memory_format
        )
        batch.copy_(self.mean)  # what is not covered by an image becomes 0
        for row, image, size in zip(batch, images, sizes, strict=True):
            pixels = image[None].float()
            if size != image.shape[1:]:
                pixels = F.interpolate(pixels, size, mode="bilinear", align_corners=False)  # as torchvision does
            row[:, : size[0], : size[1]] = pixels[0]
        return batch.sub_(self.mean).div_(self.std), sizes

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        scale = min(self.min_size / min(height, width), self.max_size / max(height, width))
        return max(1, math.floor(height * scale)), max(1, math.floor(width * scale))


def _scaled(boxes: Tensor, old: Sequence[int], new: Sequence[int]) -> Tensor:
    """Boxes (m, 4) of an image that was `old` high and wide and is `new`."""
    boxes = boxes.to(torch.float32, copy=True)
    boxes[:, 0::2] *= new[1] / old[1]
    boxes[:, 1::2] *= new[0] / old[0]
    return boxes


# --- losses ---


def losses(outputs: Outputs, anchors: Tensor, boxes: list[Tensor], labels: list[Tensor]) -> dict[str, Tensor]:
    """Classification and boxes, each a sum over anchors divided by the image's positive ones; means over images."""
    logits, offsets = outputs["cls_logits"], outputs["bbox_regression"].float()
    matches = torch.stack([match(one, anchors) for one in boxes])  # (n, anchors)
    positive = matches >= 0
    share = 1 / (positive.sum(1, keepdim=True).clamp(min=1) * len(boxes))  # (n, 1)
    # An added last row serves all anchors without an object.
    places = [one.clamp(min=-1) for one in matches]
    true_labels = torch.stack([F.pad(of, (0, 1))[place] for of, place in zip(labels, places, strict=True)])
    true_boxes = torch.stack([F.pad(of, (0, 0, 0, 1))[place] for of, place in zip(boxes, places, strict=True)])
    # Those without an object are their own box: an offset of zero instead of one that is not finite.
    true_offsets = encode(torch.where(positive[..., None], true_boxes, anchors), anchors)  # (n, anchors, 4)
    apart = (offsets - true_offsets).abs().sum(2)
    return {
        "classification": FocalLoss.apply(logits, true_labels, positive, share * (matches != -2)),
        "bbox_regression": (apart * positive * share).sum(),
    }


def match(boxes: Tensor, anchors: Tensor) -> Tensor:
    """For each anchor (anchors,): the index of its box, -1 for none, or -2 where that is left open."""
    if not len(boxes):
        return torch.full((len(anchors),), -1, device=anchors.device)
    overlaps = box_iou(boxes, anchors)  # (boxes, anchors)
    overlap, nearest = overlaps.max(0)
    matches = torch.where(overlap >= POSITIVE, nearest, torch.where(overlap < BACKGROUND, -1, -2))
    best = overlaps.amax(1, keepdim=True)  # of each box
    chosen = ((overlaps == best) & (best > 0)).any(0)
    return torch.where(chosen, nearest, matches)


def encode(boxes: Tensor, anchors: Tensor) -> Tensor:
    """What the network is to say of a box (…, 4) at an anchor: shift of its centre, and logarithms of its growth."""
    size, wanted = anchors[..., 2:] - anchors[..., :2], boxes[..., 2:] - boxes[..., :2]
    shift = (boxes[..., :2] + wanted / 2) - (anchors[..., :2] + size / 2)
    return torch.cat((shift / size, (wanted / size).log()), dim=-1)


class FocalLoss(torch.autograd.Function):
    """Σ weight · focal loss over anchors and classes: its gradient is computed with it, one image at a time in
    float32, and kept in the type of the logits."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, positive: Tensor, weight: Tensor) -> Tensor:
        """Logits (n, anchors, classes); labels, positive and weight (n, anchors). A label counts where positive."""
        slopes = torch.empty_like(logits)
        total = torch.zeros((), device=logits.device)
        for x, label, is_object, share, slope in zip(logits, labels, positive, weight, slopes, strict=True):
            x = x.float()
            # Each logit as if its class were not there, ...
            value, rise = _surprise(x)
            value, rise = value.mul_(1 - ALPHA), rise.mul_(1 - ALPHA)
            # ... and again those whose class is.
            label = label[:, None]
            present, fall = _surprise(-x.gather(1, label))
            is_object = is_object[:, None]
            correction = is_object * (ALPHA * present - value.gather(1, label))
            rise.scatter_(1, label, torch.where(is_object, -ALPHA * fall, rise.gather(1, label)))
            total += ((value.sum(1) + correction[:, 0]) * share).sum()
            slope.copy_(rise.mul_(share[:, None]))
        ctx.save_for_backward(slopes)
        return total

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None, None]:
        (slopes,) = ctx.saved_tensors
        return slopes * slope, None, None, None


def _surprise(x: Tensor) -> tuple[Tensor, Tensor]:
    """-p² log(1 - p) for p = sigmoid(x), and its slope p² (2 (1 - p) (-log(1 - p)) + p)."""
    p = x.sigmoid()
    surprise = F.softplus(x)
    slope = torch.addcmul(p, surprise, 1 - p, value=2)
    squared = p.square_()
    return surprise.mul_(squared), slope.mul_(squared)
