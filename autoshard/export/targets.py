"""Every target by its name on the command line. Adding one is adding a file and a line here."""

from collections.abc import Mapping

from autoshard.export import dtensor_export, transformers_export
from autoshard.export.engines import megatron, sglang, trtllm, vllm
from autoshard.export.target import Target

TARGETS: Mapping[str, Target] = {
    t.name: t
    for t in (
        dtensor_export.TARGET,
        transformers_export.TARGET,
        vllm.TARGET,
        sglang.TARGET,
        trtllm.TARGET,
        megatron.TARGET,
    )
}
