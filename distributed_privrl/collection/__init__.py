"""Recipes that make datasets: a policy runs in an environment, its trajectories are written."""

from distributed_privrl.collection.recipes import RECIPES, Recipe, collect

__all__ = ["RECIPES", "Recipe", "collect"]
