"""Writes docs/compatibility.md: what runs, architecture by architecture, and how exactly. Minutes of CPU time.

Every architecture is built small with random weights and run sharded on simulated ranks (threads of this process) in
float64 with forced float32 lifted, a prompt and cached decode steps, and compared with itself unsharded.
``python docs/make_compatibility.py NAME...`` runs these only; the table's other rows stay.
"""

import re
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autoshard import catalogue
from autoshard.errors import AutoshardError
from autoshard.ir import Attention, OpGraph
from autoshard.sharding import RESIDUAL, Degrees, Strategy, strategy_reasons
from autoshard.sharding.legality import choice_keys, expert_counts
from autoshard.sharding.patterns import pattern_strategy
from autoshard.tracing import ConfigSource, ModelSource, resolve, trace_source
from autoshard.tracing.quantised import blocks_of, reduced_quantisation
from autoshard.validate import Case, ModelJob, ValidationReport, validate
from autoshard.validate.quantised import form_of, write_checkpoint

NPROC = 4
DISPATCH = "model/dispatch"

MODELS = (
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "olmoe-1b-7b",
    "llama-3.1-70b",
    "deepseek-v3",
    "deepseek-v3.2",
    "kimi-k2",
    "glm-5",
    "gpt-oss-20b",
    "llama-4-scout",
    "glm-4.5-air",
    "minimax-m2.5",
    "phi-3.5-moe",
    "qwen2-57b-a14b",
    "qwen3-next-80b-a3b",
    "qwen3.5-35b-a3b",
    "nemotron-3-nano",
    "jamba-v0.1",
    "gpt-moe-7b",
)
"""One catalogue model of every architecture."""

_SMALL: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "intermediate_size": 96,
}
OTHERS: Mapping[str, dict[str, Any]] = {
    "granitemoe": {**_SMALL, "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": True},
    "hunyuan_v1_moe": {**_SMALL, "num_experts": 8, "moe_topk": 2, "head_dim": 16},
    "gemma2": {**_SMALL, "head_dim": 16, "sliding_window": 8},
    "phi3": {**_SMALL, "pad_token_id": 0},
    "gpt_neox": {k: v for k, v in _SMALL.items() if k != "num_key_value_heads"},
    "falcon": {
        **_SMALL,
        "num_kv_heads": 4,
        "new_decoder_architecture": True,
    },
    "deepseek_v2": {
        **_SMALL,
        "num_key_value_heads": 8,
        "moe_intermediate_size": 32,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "first_k_dense_replace": 1,
        "topk_method": "greedy",
    },
}
"""Architectures that the catalogue has no model of."""

QUANTISED: Mapping[str, tuple[str, dict[str, Any]]] = {
    "deepseek-v3 in fp8 blocks": ("deepseek-v3", {"quant_method": "fp8", "weight_block_size": [128, 128]}),
    "gpt-oss-20b in mxfp4": ("gpt-oss-20b", {"quant_method": "mxfp4"}),
}
"""Rows of which ranks load their shards from a quantised checkpoint of that format."""

COLUMNS = (
    "Megatron",
    "all-gather, both dims",
    "replicated",
    "EP all_to_all",
    "EP gather",
    "EP x TP",
    "DP attention + EP",
    "sequence-sharded",
    "PP2",
    "PP2 x TP2",
    "kv < tp",
)

SIMULATED = (
    "## Simulated only",
    "",
    "Parts of the [wider space](wider-space.md): priced, searched if asked for, and run nowhere yet.",
    "",
    "|part|how it is asked for|`apply`|`validate`|`export`|",
    "|---|---|---|---|---|",
    "|KV cache split over its tokens (Helix)|`--space kv-sequence`|refused|refused|refused|",
    "|layouts for prompts and answers in turn (Seesaw)|`autoshard reshard`|no plan|no plan|no plan|",
)
"""What has no row: nothing of it runs. (Cells without spaces beside them are no rows to `written`.)"""

TEXT = """# What runs, and how exactly

Written by `python docs/make_compatibility.py`: do not edit. Each architecture, built small with random weights, runs a
prompt and cached decode steps sharded on simulated ranks (four; two in column PP2) and is compared with itself
unsharded, in float64 with forced float32 lifted in both; where it is quantised, the whole model has the dequantised
weights and ranks load their shards from blocks and scales. A number is the worst max|a-b| / max|b| of the logits
over ranks and passes; beside it stands nothing else only if the collectives (kind, group, bytes, count) and the bytes
of parameters of every rank were exactly those listed beforehand. A letter is the reason why something is not offered.
Degrees: Megatron, all-gather and replicated tp=4; EP tp=4, ep=4; EP x TP ep=2, etp=2; DP attention + EP dp=4, ep=4.
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One architecture under one pattern: the cases to run, or why there are none."""

    strategies: tuple[Strategy, ...] = ()
    reason: str = ""


def offered(graph: OpGraph, *strategies: Strategy) -> Cell:
    """The strategies if all are legal, else the first rule that forbids one."""
    for strategy in strategies:
        reasons = strategy_reasons(graph, strategy)
        if reasons:
            return Cell(reason=reasons[0].message)
    return Cell(strategies=strategies)


def with_choice(strategy: Strategy, key: str, choice: int) -> Strategy:
    """The strategy with one choice changed."""
    return replace(strategy, choices=tuple({**dict(strategy.choices), key: choice}.items()))


def pattern(graph: OpGraph, name: str, degrees: Degrees) -> Cell:
    """A named pattern at degrees."""
    reasons = strategy_reasons(graph, Strategy(degrees=degrees, choices=()))
    return Cell(reason=reasons[0].message) if reasons else offered(graph, pattern_strategy(graph, degrees, name))


def cells(graph: OpGraph) -> Iterator[tuple[str, Cell]]:
    """Every column but the last for a model."""
    tp = Degrees(tp=NPROC, etp=NPROC)
    yield "Megatron", pattern(graph, "megatron", tp)
    both = [pattern(graph, name, tp) for name in ("gather_out", "gather_in")]
    yield "all-gather, both dims", Cell(both[0].strategies + both[1].strategies, both[0].reason or both[1].reason)
    yield "replicated", pattern(graph, "replicated", tp)
    if not expert_counts(graph):
        for name in ("EP all_to_all", "EP gather", "EP x TP", "DP attention + EP"):
            yield name, Cell(reason="a dense model has no experts")
    else:
        ep = pattern(graph, "megatron", Degrees(tp=NPROC, ep=NPROC))
        if DISPATCH not in choice_keys(graph):
            yield "EP all_to_all", Cell(reason="no such choice: tokens are gathered")
        else:
            yield (
                "EP all_to_all",
                Cell(ep.strategies, ep.reason)
                if not ep.strategies
                else offered(graph, with_choice(ep.strategies[0], DISPATCH, 0)),
            )
        yield "EP gather", ep
        yield "EP x TP", pattern(graph, "megatron", Degrees(tp=NPROC, ep=2, etp=2))
        yield "DP attention + EP", pattern(graph, "megatron", Degrees(dp=NPROC, ep=NPROC, batch=NPROC))
    megatron = pattern(graph, "megatron", tp)
    sequence = with_choice(megatron.strategies[0], RESIDUAL, 1) if megatron.strategies else None
    if sequence is None:
        yield "sequence-sharded", megatron
    elif sequence.residual == Strategy(degrees=tp, choices=()).residual:
        yield "sequence-sharded", Cell(reason="the residual has no such layout")
    else:
        yield "sequence-sharded", offered(graph, sequence)
    for name, degrees in (
        ("PP2", Degrees(pp=2, batch=2)),
        ("PP2 x TP2", Degrees(pp=2, tp=2, etp=2, batch=2)),
    ):
        yield name, pattern(graph, "megatron", degrees)


def small(source: ModelSource, plan_tp: int | None = None) -> ModelSource:
    """The model reduced, and quantised as it is."""
    reduced = source.reduced(tp=NPROC, ep=NPROC, etp=NPROC, nproc=NPROC, plan_tp=plan_tp)
    if not isinstance(source, ConfigSource) or not isinstance(reduced, ConfigSource):
        return reduced
    fields = reduced_quantisation(source.config, reduced.config, NPROC)
    return replace(reduced, config={**reduced.config, **fields})


def kv_cell(source: ModelSource, graph: OpGraph) -> tuple[ModelSource, OpGraph, Cell]:
    """The model with fewer kv heads than ranks."""
    cores = [op for _, op in graph.all_ops() if isinstance(op, Attention)]
    if not cores:
        return source, graph, Cell(reason="latent attention has no kv heads")
    sizes = {**getattr(source, "kwargs", {}), **getattr(source, "config", {})}
    twice = 2 * int(sizes.get("num_key_value_heads") or sizes["num_attention_heads"])
    fewer = small(source, max(twice, NPROC))
    traced = trace_source(fewer)
    found = next(op for _, op in traced.all_ops() if isinstance(op, Attention))
    if found.kv_heads.size >= NPROC or found.heads.size == found.kv_heads.size:
        return fewer, traced, Cell(reason="as many kv heads as heads")
    return fewer, traced, pattern(traced, "megatron", Degrees(tp=NPROC, etp=NPROC))


def job(source: ModelSource, graph: OpGraph, found: Mapping[str, Cell], checkpoint: str | None) -> ModelJob:
    """All cases of some cells, named by column."""
    cases = tuple(Case(name=name, strategy=s) for name, cell in found.items() for s in cell.strategies)
    return ModelJob(source=source.to_dict(), graph=graph, cases=cases, dtypes=("float64",), checkpoint=checkpoint)


def written_quantised(source: ModelSource, graph: OpGraph, folder: Path) -> str | None:
    """The folder of a checkpoint in the format that the model's config names; None where it names none."""
    form = form_of(getattr(source, "config", {}))
    if form is None:
        return None
    folder.mkdir()
    whole = source.build(device="cpu", dtype="float32", seed=0, experts="eager")
    assert write_checkpoint(whole, graph, form, blocks_of(graph), folder)["quantised"] > 0
    return str(folder)


def text_of(reports: list[ValidationReport]) -> str:
    """A cell's text: the worst error, and what is wrong if anything is."""
    worst = max(r.logits_max_rel_err for r in reports)
    failed = [r for r in reports if not r.passed]
    if failed:
        refused = (failed[0].difference or "").partition("UnsupportedModelError: ")[2]
        return f"(refused when applied: {refused})" if refused else f"**differs**: {failed[0].difference}"
    return "0" if worst == 0 else f"{worst:.0e}"


def row(source: ModelSource, folder: Path) -> dict[str, str]:
    """All columns of one architecture; checkpoints go into ``folder``."""
    reduced = small(source)
    graph = trace_source(reduced)
    stored = written_quantised(reduced, graph, folder / "all")
    found = dict(cells(graph))
    kv_source, kv_graph, kv = kv_cell(source, graph)
    texts = {name: f"({cell.reason})" for name, cell in {**found, "kv < tp": kv}.items() if not cell.strategies}
    pipelines = {n: c for n, c in found.items() if n.startswith("PP") and c.strategies}
    stage = {n: c for n, c in found.items() if n not in pipelines and c.strategies}
    runs = [(job(reduced, graph, stage, stored), NPROC)]
    if kv.strategies:
        own = written_quantised(kv_source, kv_graph, folder / "kv")
        runs.append((job(kv_source, kv_graph, {"kv < tp": kv}, own), NPROC))
    runs += [(job(reduced, graph, {n: c}, stored), c.strategies[0].degrees.num_devices) for n, c in pipelines.items()]
    for work, nproc in runs:
        by_name: dict[str, list[ValidationReport]] = {}
        for report in validate([work], nproc=nproc, simulated=True, timeout_s=600):
            by_name.setdefault(report.name, []).append(report)
        texts |= {name: text_of(reports) for name, reports in by_name.items()}
    return texts


def table(rows: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """The table, and its reasons by letter."""
    letters: dict[str, str] = {}
    yield "| model | " + " | ".join(COLUMNS) + " |"
    yield "|---|" + "---|" * len(COLUMNS)
    for name, texts in rows.items():
        shown = []
        for column in COLUMNS:
            text = texts.get(column, "(not run)")
            if text.startswith("("):
                text = letters.setdefault(
                    text, chr(ord("a") + len(letters)) if len(letters) < 26 else f"n{len(letters)}"
                )
            shown.append(text)
        yield f"| {name} | " + " | ".join(shown) + " |"
    yield ""
    yield from (f"- {letter}: {reason[1:-1]}" for reason, letter in letters.items())
    yield from ("", *SIMULATED)


def written(text: str) -> dict[str, dict[str, str]]:
    """The rows of a table as it is, letters replaced by their reasons."""
    reasons = dict(re.findall(r"^- (\w+): (.*)$", text, re.MULTILINE))
    rows: dict[str, dict[str, str]] = {}
    for line in re.findall(r"^\| (.*) \|$", text, re.MULTILINE):
        name, *cells = line.split(" | ")
        if name != "model":
            shown = [f"({reasons[cell]})" if cell in reasons else cell for cell in cells]
            rows[name] = dict(zip(COLUMNS, shown, strict=True))
    return rows


def main(names: list[str]) -> None:
    """Run all architectures (or those named) and put their rows into the table."""
    sources: dict[str, ModelSource] = {name: catalogue.find(name) for name in MODELS}
    sources |= {name: resolve({"model_type": name, **config}) for name, config in OTHERS.items()}
    for name, (model, how) in QUANTISED.items():
        plain = catalogue.find(model)
        assert isinstance(plain, ConfigSource)
        sources[name] = replace(plain, config={**plain.config, "quantization_config": how})
    file = Path(__file__).with_name("compatibility.md")
    for name in names or sources:
        start = time.perf_counter()
        try:
            with TemporaryDirectory(prefix="autoshard-compatibility-") as folder:
                found = row(sources[name], Path(folder))
        except AutoshardError as error:
            found = dict.fromkeys(COLUMNS, f"({error})")
        print(f"{name}: {time.perf_counter() - start:.1f} s {found}", file=sys.stderr, flush=True)
        rows = {**written(file.read_text(encoding="utf-8")), name: found}
        ordered = {n: rows.get(n, {}) for n in sources}
        file.write_text("\n".join([TEXT, *table(ordered), ""]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
