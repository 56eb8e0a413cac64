"""Every session: offline, one thread per process, own cache, repeatable hypothesis, GPU tests skipped with a reason."""

import atexit
import os
import shutil
import tempfile

# Before anything imports torch or transformers: the suite runs in parallel processes on few cores and never downloads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers and the processes that tests start get the controller's folder
    os.environ["AUTOSHARD_CACHE"] = tempfile.mkdtemp(prefix="autoshard-tests-")
    atexit.register(shutil.rmtree, os.environ["AUTOSHARD_CACHE"], ignore_errors=True)

import pytest
from hypothesis import settings

settings.register_profile("fast", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("deep", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device on this machine")
    for item in marked:
        item.add_marker(skip)
