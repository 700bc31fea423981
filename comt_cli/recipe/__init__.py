"""Recipes: one YAML file is one published table. All other packages build on this one; it does not import torch."""
