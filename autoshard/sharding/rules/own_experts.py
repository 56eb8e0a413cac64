"""Routed experts that the model's own code runs: it is left as it is, and every rank adds what its experts give.

Such code routes by itself, so tokens stay where they are: experts go over ep only among ranks with the same tokens
(dp = 1), each rank has E / ep of them, and what the others would add is zero here. The yield is partial over ep as
that of all experts. Within an expert the two matrices are split together, as nothing can be put between them: 0 splits
the intermediate width over etp (rows of up, columns of down), none leaves it whole. Both matrices, and the activation
between them, have one choice, that of the first.

*listed* experts are modules: those of other ranks are not held. *batched* ones are a tensor, split on the expert dim.
What is written out *inside* of a module runs whole.
"""

import re

from autoshard.ir import ExpertsLinear, Param
from autoshard.sharding.layout import P, R, S, TensorAxes
from autoshard.sharding.option import Option, ParamSharding

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def expert_module(fqn: str) -> tuple[str, int]:
    """The module of the expert that a parameter of listed experts belongs to, and the expert's number."""
    last = list(_NUMBER.finditer(fqn))[-1]
    return fqn[: last.end()], int(last.group())


def module_around(op: ExpertsLinear) -> str:
    """The module that calls experts (FQN in the first instance): around their list, or around their own module."""
    first = op.params[0].fqn
    lists = expert_module(first)[0].rpartition(".")[0] if op.form == "listed" else first.rpartition(".")[0]
    return lists.rpartition(".")[0]


def options(op: ExpertsLinear, axes: TensorAxes) -> tuple[Option, ...]:
    """Choices of one matrix of experts over ``axes`` (etp)."""
    n = len(op.inputs)
    if op.form not in ("listed", "batched"):
        return (Option(choice=None, needs=(R,) * n, yields=R, params=tuple(() for _ in op.params)),)
    whole = (op.experts.size, "ep", "experts")
    up = op.stage == "up"
    inner = op.out_dim if up else op.in_dim
    divides = (
        whole,
        (inner.size // op.packed, axes.shard, inner.name),
        (1, "dp", "the tokens that an expert loop gets"),
    )
    return (
        Option(
            choice=0,
            needs=((R if up else S), *(R,) * (n - 1)),
            yields=S if up else P,
            params=tuple((_member(op, p), *_width(op, p, axes)) for p in op.params),
            divides=divides,  # type: ignore[arg-type]
            split_out=axes.shard if up else None,
            split_in=None if up else axes.shard,
        ),
        Option(
            choice=None,
            needs=(R,) * n,
            yields=R,
            params=tuple((_member(op, p),) for p in op.params),
            divides=(whole,),  # type: ignore[arg-type]
        ),
    )


def _member(op: ExpertsLinear, param: Param) -> ParamSharding:
    if op.form == "batched":
        return ParamSharding(axis="ep", dim=0)
    return ParamSharding(axis="ep", dim=0, member=(expert_module(param.fqn)[1], op.experts.size))


def _width(op: ExpertsLinear, param: Param, axes: TensorAxes) -> tuple[ParamSharding, ...]:
    """How the intermediate width of a parameter is split; a bias of the way down is whole."""
    up, stacked = op.stage == "up", op.form == "batched"
    if param.role == "bias":
        return (ParamSharding(axis=axes.shard, dim=1 if stacked else 0, packed=op.packed),) if up else ()
    rows, columns = (1, 2) if stacked else (0, 1)
    if op.transposed:
        rows, columns = columns, rows
    if op.interleaved:
        return (ParamSharding(axis=axes.shard, dim=rows, grain=(1, op.packed)),)
    return (ParamSharding(axis=axes.shard, dim=rows if up else columns, packed=op.packed if up else 1),)
