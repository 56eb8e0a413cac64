"""Real weights: from safetensors files to every rank's shard, and back. Read `regions`, `files`, then `load`.

No rank ever holds a whole tensor that it keeps a part of: bytes go from the file to the shard, through at most one
buffer of `files.BUFFER_BYTES`. Names, shapes and dtypes are checked before anything is allocated, and the model is
only touched when everything has been read.
"""

from autoshard.emit.checkpoint.distributed import distributed_state
from autoshard.emit.checkpoint.load import LoadReport, check_weights, load_weights
from autoshard.emit.checkpoint.shards import save_sharded

__all__ = ["LoadReport", "check_weights", "distributed_state", "load_weights", "save_sharded"]
