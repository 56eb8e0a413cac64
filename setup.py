"""Which packages there are; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

models = ["autoshard_models", *(f"autoshard_models.{name}" for name in find_packages("models"))]
setup(packages=[*find_packages(include=["autoshard", "autoshard.*"]), *models])
