"""Writes device files: what was fitted or measured, merged into the file of a base device."""

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from autoshard.calibrate.fit import FittedGroup
from autoshard.hardware import CollectiveLaw, DispatchLaw, KernelLaw
from autoshard.hardware.schema import COLLECTIVE_FIELDS, DISPATCH_FIELDS, KERNEL_FIELDS

MARKER = "# --- below: written by `autoshard calibrate`, not by hand ---"
"""Everything above it in a device file is kept as it stands."""
_FITTED_KEYS = ("kernels", "dispatch", "intra", "inter")
_FIELDS: Mapping[type, Mapping[str, tuple[str, float]]] = {
    KernelLaw: KERNEL_FIELDS,
    CollectiveLaw: COLLECTIVE_FIELDS,
    DispatchLaw: DISPATCH_FIELDS,
}
_DEFAULTS: Mapping[type, Any] = {
    KernelLaw: KernelLaw(compute_efficiency=1.0, memory_efficiency=1.0, launch_s=0.0),
    CollectiveLaw: CollectiveLaw(latency_s=0.0),
    DispatchLaw: DispatchLaw(latency_s=0.0),
}
_ALWAYS = {"compute", "memory", "launch_us", "latency_us"}


def entry(law: KernelLaw | CollectiveLaw | DispatchLaw) -> dict[str, Any]:
    """A law as it stands in a device file; constants that are off are left out."""
    default = _DEFAULTS[type(law)]
    found: dict[str, Any] = {}
    for key, (name, unit) in _FIELDS[type(law)].items():
        value = getattr(law, name)
        if key in _ALWAYS or value != getattr(default, name):
            found[key] = float(f"{value / unit:.4g}")
    if isinstance(law, DispatchLaw) and law.deduplicated:
        found["deduplicated"] = True
    if law.source:
        found["source"] = law.source
    return found


def merge(base: Mapping[str, Any], groups: Iterable[FittedGroup]) -> dict[str, Any]:
    """``base`` (a device file's mapping) with the laws of ``groups`` at their places."""
    merged: dict[str, Any] = _copied(base)
    for group in groups:
        place: dict[Any, Any] = merged
        for key in group.slot[:-1]:
            place = place.setdefault(key, {})
        at: Any = group.slot[-1]
        place[int(at) if group.slot[-2] == "ranks" else at] = entry(group.law)
    for section in ("laws", "engine_laws"):
        for law in merged.get("intra", {}).get(section, {}).values():
            sources = [each.pop("source") for each in law.get("ranks", {}).values() if "source" in each]
            if sources:
                law["source"] = " ".join(sources)
    return merged


def _copied(value: Any) -> Any:
    return {key: _copied(each) for key, each in value.items()} if isinstance(value, Mapping) else value


def device_text(base_text: str, groups: Iterable[FittedGroup]) -> str:
    """The text of a device file: the hand-written part of ``base_text``, then the fitted sections."""
    merged = merge(yaml.safe_load(base_text), groups)
    head = base_text.split(MARKER)[0].rstrip()
    fitted = {key: merged[key] for key in _FITTED_KEYS if key in merged}
    return f"{head}\n\n{MARKER}\n{dump(fitted)}"


def dump(data: Mapping[str, Any]) -> str:
    """YAML with one law a line."""
    text = yaml.safe_dump(_copied(data), sort_keys=False, default_flow_style=None, width=10_000, allow_unicode=True)
    return str(text)
