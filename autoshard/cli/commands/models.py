"""``autoshard models``."""

from autoshard.cli.options import Json
from autoshard.cli.terminal import show, show_json


def models(json: Json = False) -> None:
    """List the models known by name."""
    from autoshard import catalogue

    data = {
        "models": [
            {"name": e.name, "parameters": e.num_parameters, "kind": e.kind, "reference": e.reference}
            for e in catalogue.entries()
        ]
    }
    if json:
        show_json(data)
        return
    from autoshard.cli.views.models import view

    show(*view(data))
