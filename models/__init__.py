"""Models as plain data and plain PyTorch, installed as ``autoshard_models``.

Nothing here knows the compiler: configs are facts from published ``config.json`` files, and ``gpt_moe`` is a readable
model definition. Importing this package imports neither torch nor transformers.
"""

from .catalogue import CATALOGUE, CatalogueEntry

__all__ = ["CATALOGUE", "CatalogueEntry"]
