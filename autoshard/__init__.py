"""Searches and applies sharding plans for mixture-of-experts LLM inference.

``from autoshard import autoshard, H100x64, Workload, Plan``: any ``<DEVICE>x<COUNT>`` of a device that ships is a name
here. Everything is imported when it is first used, so that importing the package (and ``autoshard --help``) is quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoshard.api.check import check
    from autoshard.api.entry import autoshard
    from autoshard.api.plan import Plan
    from autoshard.hardware import Cluster
    from autoshard.workload import Workload

__all__ = ["Cluster", "Plan", "Workload", "autoshard", "check"]

_HOMES = {
    "autoshard": "autoshard.api.entry",
    "check": "autoshard.api.check",
    "Plan": "autoshard.api.plan",
    "Cluster": "autoshard.hardware",
    "Workload": "autoshard.workload",
}


def __getattr__(name: str) -> Any:
    """A public name, or the cluster that ``<DEVICE>x<COUNT>`` means."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if "x" in name and not name.startswith("_"):
        cluster = import_module("autoshard.hardware").named_cluster(name)
        if cluster is not None:
            return cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
