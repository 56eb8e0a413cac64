"""``--to dtensor``: one Python file that shards the model with torch alone.

The file holds the plan (mesh, a placement per parameter, and for every kind of layer a function with one call per
fused op) and the parts of the small `runtime` that these calls need, copied. Every strategy of one stage is expressible
but those that split the residual by its tokens.
"""

from collections.abc import Iterator
from importlib.metadata import version

from autoshard.export.artifact import Export, ExportedFile
from autoshard.export.dtensor_source import at_layer, call, instances, moves, names_, quoted, repr_
from autoshard.export.reading import Reading, unknown_choices
from autoshard.export.runtime_source import runtime_source
from autoshard.export.target import Target
from autoshard.ir import (
    Activation,
    Attention,
    Block,
    Embedding,
    ExpertsLinear,
    Linear,
    Mixer,
    Norm,
    Opaque,
    OpGraph,
    Router,
)
from autoshard.plan import PlanData
from autoshard.sharding import Degrees, Layout, ResolvedOp, Step, Strategy, strategy_reasons
from autoshard.sharding.patterns import pattern_strategy
from autoshard.sharding.rules.experts import is_stacked
from autoshard.sharding.space import is_module, tensor_axes
from autoshard.sharding.strategy import DISPATCH, RESIDUAL

VERSION = "2.11 to 2.14"
"""Of torch."""

FILE = "sharded_model.py"
_READS_PARAMETERS = ("attention", "latent_attention", "mixer", "combine", "router", "opaque", "indexer")


def reasons(graph: OpGraph, strategy: Strategy) -> tuple[str, ...]:
    """Why the runtime of the file cannot run ``strategy``."""
    found = list(unknown_choices(graph, strategy, known=(DISPATCH,)))
    if strategy.degrees.pp > 1:
        found.append(f"pp={strategy.degrees.pp}: the file runs one stage; pipelines are not exported")
    if strategy.residual is Layout.TOKENS and strategy.degrees.tp > 1:
        found.append(f"{RESIDUAL}=1: the file keeps a residual whole or splits its features, not its tokens")
    loops = [op.fqn for _, op in graph.all_ops() if isinstance(op, ExpertsLinear) and not is_stacked(op)]
    if loops and strategy.residual is Layout.SHARDED and strategy.degrees.tp > 1:
        found.append(f"{RESIDUAL}=0: the model's own code runs experts of {loops[0]}, and makes a whole residual")
    return tuple(found)


def strategy_at(graph: OpGraph, degrees: Degrees) -> Strategy | None:
    """Megatron's choices at the degrees."""
    if degrees.pp > 1:
        return None
    found = pattern_strategy(graph, degrees, "megatron")
    return None if strategy_reasons(graph, found) else found


def write(plan: PlanData) -> Export:
    """The file."""
    d = plan.degrees
    blocks = ", ".join(f'"{b.name}": {_function(b)}' for b in plan.graph.components() if b.ops)
    own = "\n".join([*_tables(plan), "", *_functions(plan), _APPLY.format(blocks=blocks)])
    imports, runtime = runtime_source(own)
    text = "\n".join([_head(plan), imports, "", "# --- the plan", "", own, runtime])
    other = plan.workload.dtype != plan.graph.dtype
    dtype = [f"planned for {plan.workload.dtype}; the file shards the model in its own dtype"] if other else []
    replicas = [] if d.replicas == 1 else [f"the plan is {d.replicas} replicas, the file one of them"]
    return Export(
        target="dtensor",
        version=f"torch {VERSION}",
        command=f"torchrun --nproc-per-node {d.num_devices} YOUR_SCRIPT.py",
        files=(ExportedFile(name=FILE, text=text + "\n"),),
        notes=(
            *replicas,
            *dtype,
            *([f"each of the {d.dp} data-parallel ranks feeds its own sequences"] if d.dp > 1 else []),
        ),
    )


_APPLY = '''
BLOCKS = {{{blocks}}}


def device_mesh(device_type="cuda"):
    """The mesh of one replica over the ranks of the process group, which the caller has started."""
    return make_mesh(MESH, VIEWS, device_type)


def apply(model, mesh):
    """Shard `model` in place on `mesh` and return it. It may be on the meta device."""
    expected = {{
        name.format(at=at): (tuple(shape), dims, texts)
        for block, table in PLACEMENTS.items()
        for at in LAYERS[block]
        for name, (shape, dims, texts) in table.items()
    }}
    found = {{name: tuple(p.shape) for name, p in model.named_parameters(remove_duplicate=False)}}
    wrong = [n for n in {{**expected, **found}} if expected.get(n, [None])[0] != found.get(n)]
    if wrong:
        name = wrong[0]
        raise ValueError(f"not the model planned for: {{name}} is {{found.get(name)}}, planned {{expected.get(name)}}")
    axes = make_axes(mesh, VIEWS)
    state = (axes, VIEWS, {{}})
    for name, (_, dims, texts) in expected.items():
        place_parameter(model, name, dims, texts, mesh, state)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_meta:
                module._buffers[name] = buffer.to(mesh.device_type)
    for owner in {{name.rpartition(".")[0] for name in expected}}:
        run_local(model, owner, [owner])
    for block, function in BLOCKS.items():
        for at in LAYERS[block]:
            function(model, at, axes)
    return model

'''


def _head(plan: PlanData) -> str:
    d = plan.degrees
    return f'''"""{plan.model.name} ({plan.model.class_name}) sharded for {plan.cluster.name}: \
pp={d.pp} dp={d.dp} tp={d.tp} ep={d.ep} etp={d.etp}, {d.num_devices} ranks a replica.

Written by autoshard {version("autoshard")} for torch {VERSION}. Needs torch and the model's own definition only:

    mesh = device_mesh("cuda")   # every rank, after init_process_group
    apply(model, mesh)           # parameters become DTensors, forwards move activations as planned
"""
'''


def _tables(plan: PlanData) -> Iterator[str]:
    """Mesh, layers and placements as literals."""
    dims = ", ".join(f"{repr_(n)}: {size}" for n, size in plan.mesh.dims)
    yield f"MESH = {{{dims}}}"
    yield "VIEWS = {  # every axis as the mesh dims it runs over"
    yield from (f"    {repr_(axis)}: {names_(view)}," for axis, view in plan.mesh.views.items())
    yield "}"
    yield "LAYERS = {"
    for block in plan.graph.components():
        yield f"    {repr_(block.name)}: {instances(block)},"
    yield "}"
    yield "# parameter: (whole shape, mesh dims, a placement for each: R, S(dim), S(dim, parts=n) of n side by side)"
    yield "PLACEMENTS = {"
    for block in plan.graph.components():
        yield f"    {repr_(block.name)}: {{"
        for op in block.ops:
            for p in op.params:
                planned = plan.parameters[p.fqn]
                name = repr_(at_layer(block, p.fqn))
                yield f"        {name}: ({p.shape!r}, {names_(planned.mesh)}, {names_(planned.placements)}),"
        yield "    },"
    yield "}"


def _function(block: Block) -> str:
    return "shard_" + "".join(c if c.isalnum() else "_" for c in block.name)


def _functions(plan: PlanData) -> Iterator[str]:
    """One function per kind of block."""
    reading = Reading.of(plan.graph, plan.strategy)
    for block in plan.graph.components():
        if not block.ops:
            continue
        lines = list(_calls(reading, block))
        yield ""
        yield f"def {_function(block)}(model, at, axes):"
        yield f'    """{block.repeat} x {block.name}, first at {block.instances[0] or "the model"}."""'
        yield from lines or ["    pass"]
        yield ""


def _calls(reading: Reading, block: Block) -> Iterator[str]:
    items = reading.resolved[block.name]
    leaders = [i for i in items if isinstance(i.op, Mixer | Attention) and i.op.split is not None]
    headed = {leader.op.name: _used_by(leader, items) for leader in leaders}
    in_heads = {item.op.name for used in headed.values() for item in used}
    inside: dict[str, dict[str, None]] = {}
    for item in items:
        op = item.op
        if op.name in in_heads:
            continue
        loose = isinstance(op, ExpertsLinear) and not is_stacked(op)
        inside_another = isinstance(op, Linear) and op.follows is None and not is_module(block, op)
        if op.kind in _READS_PARAMETERS or loose or inside_another:
            owners = dict.fromkeys(at_layer(block, p.fqn.rpartition(".")[0]) for p in op.params)
            inside.setdefault(at_layer(block, op.fqn), {}).update(owners)
        if op.inputs and not inside_another:
            yield from _call(reading, block, item, items)
    for leader in leaders:
        yield from _heads(reading, block, leader, headed[leader.op.name], items)
    for at, owners in inside.items():
        others = [o for o in owners if o != at]
        if others:
            yield call("run_local", ["model", quoted(at), f"[{', '.join(quoted(o) for o in others)}]"], {})
    for item in items:
        if isinstance(item.op, ExpertsLinear) and item.op.stage == "down" and is_stacked(item.op):
            yield from _keep_width(reading, block, item, items)


def _used_by(leader: ResolvedOp, items: tuple[ResolvedOp, ...]) -> list[ResolvedOp]:
    """The leader of a module that runs on its heads, and the ops whose parameters that module uses itself."""
    kinds = ("mixer", "attention", "combine", "linear")
    return [i for i in items if i.op.name == leader.op.name or (i.op.follows == leader.op.name and i.op.kind in kinds)]


def _heads(
    reading: Reading, block: Block, leader: ResolvedOp, used: list[ResolvedOp], items: tuple[ResolvedOp, ...]
) -> Iterator[str]:
    op = leader.op
    assert isinstance(op, Mixer | Attention) and op.split is not None and leader.option is not None
    shares = reading.sizes["tp"] if leader.option.choice == 0 else 1
    params = [p for item in used for p in item.op.params]
    owners = dict.fromkeys(quoted(at_layer(block, p.fqn.rpartition(".")[0])) for p in params)
    cut = [p for p in params if shares > 1 and len(set(p.parts)) > 1]
    rows = ", ".join(f"{quoted(at_layer(block, p.fqn))}: ({p.split_dim}, {p.parts})" for p in cut)
    under = {f"{op.fqn}.{path}" for path in op.split.readers}
    widths = {i.op.in_dim.size for i in items if isinstance(i.op, Linear) and i.op.fqn in under}
    if not owners and shares == 1 and not op.split.readers:
        return
    named = {
        "owners": f"({', '.join(owners)},)" if owners else None,
        "rows": f"{{{rows}}}" if rows else None,
        "counts": names_(op.split.counts) if shares > 1 and op.split.counts else None,
        "readers": names_(op.split.readers) if op.split.readers else None,
        "width": str(widths.pop() // shares) if op.split.readers else None,
    }
    yield call("heads", ["model", quoted(at_layer(block, op.fqn)), "axes"], named)


def _call(reading: Reading, block: Block, item: ResolvedOp, items: tuple[ResolvedOp, ...]) -> Iterator[str]:
    op, option = item.op, item.option
    owner = op.params[0].fqn.rpartition(".")[0] if op.params else op.fqn
    head = ["model", quoted(at_layer(block, owner)), "axes"]
    before = moves(reading, item.entry[0]) if item.entry else "[]"
    after = moves(reading, item.exit)
    inner = reading.internal(item)
    partial = str(option is not None and option.yields is Layout.PARTIAL)
    match op:
        case Embedding():
            assert option is not None
            split = next((s.axis for s in option.params[0] if s.dim == 0 and reading.sizes[s.axis] > 1), None)
            over = None if split is None else repr_(split)
            if after != "[]" or over:
                yield call("embedding", head, {"after": after, "vocabulary_over": over})
        case Norm():
            over = repr_(inner[0].axis) if inner else None
            if (before, after) != ("[]", "[]") or over:
                yield call("norm", head, {"before": before, "after": after, "rows_over": over})
        case Linear():
            cut = "[]"
            if item.delivered is Layout.SHARDED:
                axis = tensor_axes(block, op).shard
                step = Step(kind="slice", axis=axis, rows="local", width=0, packed=op.packed, parts=op.parts)
                cut = moves(reading, (step,))
            biased = str(partial == "True" and any(p.role == "bias" for p in op.params))
            named = {"before": before, "after": after, "partial": biased, "cut": cut if biased == "True" else None}
            over = tensor_axes(block, op).shard
            if op.parts and reading.sizes[over] > 1 and option is not None and option.choice == 0:
                named |= {"rows": repr(op.parts), "rows_over": None if over == "tp" else repr_(over)}
            if (before, after) != ("[]", "[]") or biased == "True" or "rows" in named:
                yield call("linear", head, named)
        case Opaque() if (before, after) != ("[]", "[]"):
            yield call("linear", head, {"before": before, "after": after})
        case Attention() if (
            op.split is None and option is not None and option.choice is not None and reading.sizes["tp"] > 1
        ):
            heads = f"({op.heads.size}, {op.heads.size // reading.sizes['tp']})"
            kv = f"({op.kv_heads.size}, {op.kv_heads.size // reading.sizes['tp_kv']})"
            at = quoted(at_layer(block, op.fqn))
            yield call("attention", ["model", at], {"heads": heads, "kv_heads": kv})
        case Router() if before != "[]" or inner:
            inside = moves(reading, inner)
            summed = str(option is not None and option.choice == 1)
            yield call("router", [*head, str(op.hidden.size)], {"before": before, "inside": inside, "partial": summed})
        case ExpertsLinear() if op.stage == "up" and is_stacked(op):
            yield _experts(reading, block, item, items)


def _experts(reading: Reading, block: Block, up: ResolvedOp, items: tuple[ResolvedOp, ...]) -> str:
    act = next(i for i in items if up.op.name in i.op.inputs)
    down = next(i for i in items if act.op.name in i.op.inputs)
    assert isinstance(up.op, ExpertsLinear) and isinstance(act.op, Activation)
    entry = reading.live(up.entry[0])
    exchanged = any(s.kind == "all_to_all" for s in entry)
    gathers = [s for s in entry if s.indices and s.kind == "all_gather"]
    shared = [s for s in entry if s.kind == "slice" and s.dim == "token"]
    rest = tuple(s for s in entry if s.kind != "all_to_all" and s not in gathers and s not in shared)
    leave = tuple(s for s in reading.exit(down) if s.kind != "all_to_all")
    cut = sum(s.axis != "tp" or s.kind == "all_reduce" for s in leave) if exchanged else len(leave)
    named = {
        "up": _matrix(reading, up, (), up.exit),
        "down": _matrix(reading, down, down.entry[0], ()),
        "gated": str(act.op.num_inputs_wide == 2),
        "interleaved": str(up.op.interleaved),
        "share_of": repr_(shared[0].axis) if shared else None,
        "tokens_over": repr_(gathers[0].axis) if gathers else None,
        "after_gather": moves(reading, rest),
        "send": "send_to_experts" if exchanged else None,
        "num_experts": str(up.op.experts.size) if exchanged else None,
        "after_activation": moves(reading, act.exit),
        "combine": moves(reading, leave[:cut]),
        "deliver": moves(reading, leave[cut:]),
    }
    return call("experts", ["model", quoted(at_layer(block, up.op.fqn)), "axes", str(up.op.top_k)], named)


def _matrix(reading: Reading, item: ResolvedOp, before: tuple[Step, ...], after: tuple[Step, ...]) -> str:
    op, option = item.op, item.option
    assert isinstance(op, ExpertsLinear) and option is not None
    named = {p.role: repr_(p.fqn.rpartition(".")[2]) for p in op.params}
    cut: tuple[Step, ...] = ()
    if op.stage == "up" and item.delivered is Layout.SHARDED:
        cut = (Step(kind="slice", axis="etp", rows="pairs", width=0, packed=1 if op.interleaved else op.packed),)
    partial = option.yields is Layout.PARTIAL
    return call(
        "Matrix",
        [named["weight"]],
        {
            "bias": named.get("bias"),
            "transposed": str(op.transposed),
            "partial": str(partial),
            "before": moves(reading, before),
            "after": moves(reading, after),
            "bias_cut": moves(reading, cut) if partial and "bias" in named else None,
        },
        indent=0,
    ).replace("\n", "\n        ")


def _keep_width(reading: Reading, block: Block, down: ResolvedOp, items: tuple[ResolvedOp, ...]) -> Iterator[str]:
    assert isinstance(down.op, ExpertsLinear)
    up = next(i for i in items if isinstance(i.op, ExpertsLinear) and i.op.stage == "up" and i.op.fqn == down.op.fqn)
    producer = next(i for i in items if i.op.name == up.op.inputs[0])
    whole = down.op.out_dim.size
    width = {Layout.REPLICATED: whole, Layout.SHARDED: whole // reading.sizes["tp"]}
    before, after = width[producer.delivered], width[down.delivered]
    if before != after:
        parent = at_layer(block, down.op.fqn.rpartition(".")[0])
        yield call("keep_width", ["model", quoted(parent), str(before), str(after)], {})


TARGET = Target(
    name="dtensor",
    version=f"torch {VERSION}",
    reasons=reasons,
    strategy=strategy_at,
    write=write,
    spaces=(({"pp": 1}, {RESIDUAL: None}), ({"pp": 1}, {RESIDUAL: 0})),
)
