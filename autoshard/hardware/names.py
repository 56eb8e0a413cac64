"""How people say which cluster they mean: ``H100x64``, any ``<DEVICE>x<COUNT>``, or a YAML file."""

import difflib
import re
from dataclasses import replace
from pathlib import Path

from autoshard.errors import InvalidInputError
from autoshard.hardware.cluster import Cluster
from autoshard.hardware.files import known_devices, load_cluster, shipped_cluster

MOST_DEVICES = 131_072
"""Enumerating the degrees of more takes minutes and gigabytes."""
_NAME = re.compile(r"([A-Za-z0-9_-]+?)[xX]([0-9]{1,9})")


LIBRARY = "+library"
"""Ends the name of a cluster whose collectives are all the library's (NCCL's own choice)."""


def library_only(cluster: Cluster) -> Cluster:
    """A cluster without the one- and two-shot all-reduces and the dispatch kernels of engines."""
    if cluster.name.endswith(LIBRARY):
        return cluster
    return replace(
        cluster,
        name=cluster.name + LIBRARY,
        device=replace(cluster.device, dispatch={}),
        intra=replace(cluster.intra, engine_laws={}),
        inter=replace(cluster.inter, engine_laws={}),
    )


def parse_cluster(text: str) -> Cluster:
    """The cluster called ``text``: ``<DEVICE>x<COUNT>`` (in any case) or the path of a YAML file.

    Followed by ``+library`` it has the library's collectives alone, without those that engines bring along.

    Raises:
        InvalidInputError: one line that names the known devices and the nearest match.
    """
    if text.endswith(LIBRARY):
        return library_only(parse_cluster(text.removesuffix(LIBRARY)))
    if text.endswith((".yaml", ".yml")) or Path(text).is_file():
        return _of_sane_size(load_cluster(Path(text)), text)
    devices = known_devices()
    listed = ", ".join(devices)
    match = _NAME.fullmatch(text.strip())
    if match is None:
        form = "a cluster is <DEVICE>x<COUNT> such as H100x64, or a YAML file"
        raise InvalidInputError(f"cannot read cluster {text!r}: {form}; known devices are {listed}")
    word, count = match[1].upper(), int(match[2])
    by_upper = {name.upper(): name for name in devices}
    if word not in by_upper:
        near = difflib.get_close_matches(word, by_upper, n=1, cutoff=0.3)
        hint = f"; did you mean {by_upper[near[0]]}x{max(count, 1)}?" if near else ""
        raise InvalidInputError(f"unknown device {match[1]!r} in cluster {text!r}: known devices are {listed}{hint}")
    if count < 1:
        raise InvalidInputError(f"cluster {text!r} has {count} devices: it needs at least 1, as in {by_upper[word]}x8")
    return _of_sane_size(shipped_cluster(by_upper[word], count), text)


def _of_sane_size(cluster: Cluster, text: str) -> Cluster:
    if cluster.num_devices > MOST_DEVICES:
        raise InvalidInputError(f"cluster {text!r} has {cluster.num_devices:,} devices: at most {MOST_DEVICES:,} work")
    return cluster


def named_cluster(name: str) -> Cluster | None:
    """The cluster that ``from autoshard import <name>`` means, or None if ``name`` is no such name."""
    match = _NAME.fullmatch(name)
    if match is None or "x" + match[2] != name[len(match[1]) :] or match[1] not in known_devices():
        return None
    return shipped_cluster(match[1], int(match[2])) if int(match[2]) > 0 else None
