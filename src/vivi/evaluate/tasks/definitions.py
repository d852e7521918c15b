"""The 19 tasks of VTAB: their groups, classes and known sizes, and under which names their folders go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Group = Literal["natural", "specialized", "structured", "own"]
GROUPS: tuple[Group, ...] = get_args(Group)
"""The paper's three, and the tasks that users bring."""


@dataclass(frozen=True)
class Definition:
    """What is known of a task beforehand. `train`, `val` and `test` are the sizes of its splits in the full regime;
    with 1000 examples the test images are the same."""

    name: str
    title: str
    group: Group
    classes: int
    train: int
    val: int
    test: int
    folders: tuple[str, ...] = ()
    """Names that the community's VTAB-1k folders have for it, besides its own."""


VTAB: tuple[Definition, ...] = (
    Definition("caltech101", "Caltech101", "natural", 102, 2754, 306, 6084),
    Definition("cifar100", "CIFAR-100", "natural", 100, 45000, 5000, 10000, ("cifar",)),
    Definition("dtd", "DTD", "natural", 47, 1880, 1880, 1880),
    Definition("flowers102", "Flowers102", "natural", 102, 1020, 1020, 6149, ("oxford_flowers102",)),
    Definition("pets", "Pets", "natural", 37, 2944, 736, 3669, ("oxford_iiit_pet",)),
    Definition("svhn", "SVHN", "natural", 10, 65931, 7326, 26032, ("svhn_cropped",)),
    Definition("sun397", "Sun397", "natural", 397, 76128, 10875, 21750),
    Definition("patch_camelyon", "Camelyon", "specialized", 2, 262144, 32768, 32768),
    Definition("eurosat", "EuroSAT", "specialized", 10, 16200, 5400, 5400),
    Definition("resisc45", "Resisc45", "specialized", 45, 18900, 6300, 6300),
    Definition(
        "diabetic_retinopathy",
        "Retinopathy",
        "specialized",
        5,
        35126,
        10906,
        42670,
        ("diabetic_retinopathy_detection",),
    ),
    Definition("clevr_count", "Clevr-Count", "structured", 8, 63000, 7000, 15000),
    Definition("clevr_distance", "Clevr-Dist", "structured", 6, 63000, 7000, 15000, ("clevr_dist",)),
    Definition("dmlab", "DM-Lab", "structured", 6, 65550, 22628, 22735),
    Definition("kitti_distance", "KITTI-Dist", "structured", 4, 6347, 423, 711, ("kitti", "kitti_dist")),
    Definition("dsprites_location", "dSpr-Loc", "structured", 16, 589824, 73728, 73728, ("dsprites_loc",)),
    Definition("dsprites_orientation", "dSpr-Ori", "structured", 16, 589824, 73728, 73728, ("dsprites_ori",)),
    Definition("smallnorb_azimuth", "sNORB-Azim", "structured", 18, 24300, 12150, 12150, ("smallnorb_azi",)),
    Definition("smallnorb_elevation", "sNORB-Elev", "structured", 9, 24300, 12150, 12150, ("smallnorb_ele",)),
)


def definition(name: str) -> Definition | None:
    """What is known of the task of this name, or in a folder of this name; None for one that users bring."""
    return next((task for task in VTAB if name == task.name or name in task.folders), None)
