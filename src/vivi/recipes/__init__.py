"""Recipes: everything that decides what is learned. Every method of the paper is one, in three sizes."""

from vivi.recipes.losses import Exemplar, InfoNCE, Jigsaw, Location, LossSettings, Order, Rotation
from vivi.recipes.scaled import METHODS, PAPER, RECIPES
from vivi.recipes.schema import Augment, Batch, Encoder, Images, Loss, Optimiser, Recipe

__all__ = [
    "METHODS",
    "PAPER",
    "RECIPES",
    "Augment",
    "Batch",
    "Encoder",
    "Exemplar",
    "Images",
    "InfoNCE",
    "Jigsaw",
    "Location",
    "Loss",
    "LossSettings",
    "Optimiser",
    "Order",
    "Recipe",
    "Rotation",
]
