"""Writes the tables of docs/check.md, below its mark: formats, every engine's memory figures, options and rules."""

from collections.abc import Iterator
from pathlib import Path

from autoshard.engines import engine_names, read_engine, schemes
from autoshard.engines.profile import Engine

PAGE = Path(__file__).parent / "check.md"
MARK = "<!-- Below this line: made by `python docs/make_check.py` from autoshard/engines/data. Do not edit. -->"


def formats() -> Iterator[str]:
    """The table of weight formats."""
    yield "\n## Weight formats\n"
    yield "| name | also | bits | scales | covers | source |"
    yield "|---|---|---:|---|---|---|"
    for s in schemes().values():
        scales = f"{s.scale_bytes:g} B a {s.block}x{s.block} block" if s.block else ""
        scales = f"{s.scale_bytes:g} B for {s.group}" if s.group else scales
        scales = scales or (f"{s.scale_bytes:g} B a matrix" if s.scale_bytes else "-")
        yield f"| {s.name} | {', '.join(s.aliases)} | {s.bits} | {scales} | {', '.join(s.covers) or '-'} | {s.source} |"


def cell(text: str) -> str:
    """Text inside a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def section(name: str) -> Iterator[str]:
    """Everything the file of one engine says."""
    engine = read_engine(name)
    yield f"\n## {engine.title}\n"
    yield f"`--engine {name}`, written for {engine.written_for}, held to be true for {engine.versions}."
    yield f"Flags: {engine.flags}\n"
    yield from _memory(engine)
    if engine.options:
        yield "\n| option | default | meaning |\n|---|---|---|"
        for option, o in engine.options.items():
            default = o.default if isinstance(o.default, str) else f"{o.default:g}"
            yield f"| {option} | {default} | {cell(o.meaning)} |"
    for p in engine.padding:
        yield f"\nPadding of experts in {', '.join(p.quant) or 'any format'} (`{p.when.text}`):"
        yield f"hidden to {p.hidden}, intermediate to {p.intermediate}. {p.source}"
    if engine.rules:
        yield "\n| rule | of | holds when | for | otherwise | source |\n|---|---|---|---|---|---|"
        for r in engine.rules:
            scope = ", ".join(x for x in (r.versions, *r.quant, *r.models) if x) or "all"
            condition = r.require.text if r.when.text == "1" else f"{r.require.text} (asked if {r.when.text})"
            of = "the model" if r.over == "once" else f"each {r.over}"
            yield f"| {r.name} | {of} | `{cell(condition)}` | {cell(scope)} | {r.effect} | {cell(r.source)} |"


def _outside(inside: str) -> str:
    return ", outside the budget" if inside == "0" else f", in the budget if `{inside}`"


def _memory(engine: Engine) -> Iterator[str]:
    m = engine.memory
    yield "| memory | value | source |\n|---|---|---|"
    rules = {
        "of_total": "f · total − weights − activations − context − communication",
        "of_static": "f · (total − context − communication) − weights",
        "of_free": "f · (total − weights − activations − context − communication)",
    }
    yield f"| KV budget | {rules[m.budget]}, f = `{cell(m.fraction.text)}` | {cell(m.source.get('fraction', ''))} |"
    shown = (
        ("context", f"{m.context:g} GiB"),
        ("communication", f"`{m.communication.text}` GiB from two ranks"),
        ("graphs", f"`{m.graphs.text}` GiB{_outside(m.graphs_in_budget.text)}"),
        ("max_num_tokens", f"`{m.max_num_tokens.text}`"),
        ("max_num_seqs", f"`{m.max_num_seqs.text}`"),
        ("logits_bytes", f"{m.logits_bytes:g} B a sequence and vocabulary entry"),
        ("block_tokens", f"{m.block_tokens} tokens a block"),
        ("window_slack", f"`{m.window_slack.text}` tokens beside a window"),
    )
    for name, value in shown:
        if name in m.source:
            yield f"| {name} | {cell(value)} | {cell(m.source[name])} |"


def page() -> str:
    """The whole page: its own text, and the tables."""
    text = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    lines = [*formats(), *(line for name in engine_names() for line in section(name))]
    return text + MARK + "\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
