"""What all blocks of one trace share."""

from dataclasses import dataclass

from torch import fx

from autoshard.tracing.axes import AxisAnalysis
from autoshard.tracing.parameters import ParameterLedger


@dataclass(frozen=True, kw_only=True)
class GraphContext:
    """Facts about the exported graph, and the ledger of parameters.

    ``owners`` gives the module that ran a node; ``data`` the nodes that depend on token embeddings; ``token_ids`` and
    ``output`` what enters and leaves the model. ``hidden`` is the width of the residual, ``tokens`` the size of the
    traced batch.
    """

    analysis: AxisAnalysis
    ledger: ParameterLedger
    owners: dict[str, str]
    data: set[fx.Node]
    token_ids: set[fx.Node]
    output: set[fx.Node]
    hidden: int
    tokens: int
