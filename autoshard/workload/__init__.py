"""What is served, and within which limits. Never imports torch."""

from autoshard.workload.workload import Phase, Workload, normalise_dtype

__all__ = ["Phase", "Workload", "normalise_dtype"]
