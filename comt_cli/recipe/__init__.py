"""Recipes: one YAML file is one published table. Torch-free, and the base that every other room stands on."""
