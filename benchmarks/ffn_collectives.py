"""Writes docs/results/ffn-collectives.md: all-gather-based FFN against all-reduce-based FFN at equal degrees.

``python benchmarks/ffn_collectives.py [--write]`` prints the page, or writes it. Predictions are the shipped H100 laws;
measured numbers are medians of the NCCL rows in ``benchmarks/data``. Hidden size 4,096 in 16 bits makes every message a
power of two, so that each predicted sum has its measured sum beside it.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from autoshard.calibrate import KINDS, read_table
from autoshard.cost import collective_s
from autoshard.hardware import CollectiveKind, parse_cluster

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results" / "ffn-collectives.md"
HIDDEN, ELEMENT_BYTES = 4096, 2
TOKENS = tuple(4**i for i in range(8))
RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)
RANKS = (2, 4, 8)
CLUSTER = parse_cluster("H100x64")
Time = Callable[[CollectiveKind, float, int], float | None]


def predicted_us(kind: CollectiveKind, num_bytes: float, ranks: int) -> float:
    """The law's time, in microseconds; groups of more than 8 span nodes of 8."""
    local = min(ranks, CLUSTER.devices_per_node)
    return float(collective_s(kind, num_bytes, ranks, local, CLUSTER.intra, CLUSTER.inter)) * 1e6


def measured_rows() -> dict[tuple[str, int, int], float]:
    """Median microseconds by (collective, ranks, bytes), 16-bit rows of all versions of NCCL."""
    table = read_table(ROOT / "benchmarks" / "data" / "nccl_h100.csv.gz", KINDS["nccl"].columns)
    rows: dict[tuple[str, int, int], list[float]] = {}
    columns = (table.text("op"), table.text("num_gpus"), table.text("size_bytes"), table.text("dtype"))
    for op, ranks, size, dtype, time_us in zip(*columns, table.numbers("time_us"), strict=True):
        if dtype == "half":
            rows.setdefault((op, int(ranks), int(float(size))), []).append(float(time_us))
    return {key: float(np.median(values)) for key, values in rows.items()}


MEASURED = measured_rows()


def measured_us(kind: CollectiveKind, num_bytes: float, ranks: int) -> float | None:
    """The measured time, or None where that size was not measured."""
    return MEASURED.get((kind, ranks, int(num_bytes)))


def layer_us(time: Time, tokens: int, ratio: float, ranks: int) -> tuple[float, float, float] | None:
    """All-reduce FFN, all-gather FFN, and the latter without its re-gather; None where a size was not measured."""
    out = tokens * HIDDEN * ELEMENT_BYTES
    reduce = time("all_reduce", out, ranks)
    middle, regather = time("all_gather", out * ratio, ranks), time("all_gather", out, ranks)
    if reduce is None or middle is None or regather is None:
        return None
    return reduce, middle + regather, middle


def main_table() -> list[str]:
    lines = [
        "| ranks | f/h | tokens | all-reduce FFN, predicted (measured) | all-gather FFN | re-gather forgotten |"
        " faster, measured | said if forgotten |",
        "|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for ranks in RANKS:
        for ratio in RATIOS:
            for tokens in (1, 64, 1024, 16384):
                said, seen = layer_us(predicted_us, tokens, ratio, ranks), layer_us(measured_us, tokens, ratio, ranks)
                assert said is not None
                cells = [f"{a:.0f} ({'–' if seen is None else f'{seen[i]:.0f}'})" for i, a in enumerate(said)]
                truth = seen or said
                winner = "gather" if truth[1] < truth[0] else "reduce"
                forgotten = "gather" if truth[2] < truth[0] else "reduce"
                flag = "**" if forgotten != winner else ""
                lines.append(
                    f"| {ranks} | {ratio:g} | {tokens:,} | {cells[0]} | {cells[1]} | {cells[2]} |"
                    f" {winner}{'' if seen else ' (predicted)'} | {flag}{forgotten}{flag} |"
                )
    return lines


def agreement() -> list[str]:
    same = flipped = total = 0
    errors = []
    wins = {ratio: [0, 0] for ratio in RATIOS}
    for ranks in RANKS:
        for ratio in RATIOS:
            for tokens in TOKENS:
                said, seen = layer_us(predicted_us, tokens, ratio, ranks), layer_us(measured_us, tokens, ratio, ranks)
                if said is None or seen is None:
                    continue
                total += 1
                same += (said[1] < said[0]) == (seen[1] < seen[0])
                flipped += (seen[1] < seen[0]) != (seen[2] < seen[0])
                wins[ratio][0] += seen[1] < seen[0]
                wins[ratio][1] += 1
                errors += [abs(a / b - 1) for a, b in zip(said[:2], seen[:2], strict=True)]
    won = ", ".join(f"{w}/{n} at f/h = {ratio:g}" for ratio, (w, n) in wins.items())
    return [
        f"Of {total} points (2, 4 and 8 ranks; f/h of {RATIOS[0]:g} to {RATIOS[-1]:g}; {TOKENS[0]} to {TOKENS[-1]:,}"
        f" tokens) the laws name the measured winner in {same}; the median error of a predicted sum is"
        f" {100 * np.median(errors):.1f} %. Measured, the all-gather FFN is faster in {won}.",
        "",
        f"Forgetting the re-gather changes the verdict in {flipped} of the {total} points, always in favour of the"
        " all-gather form: that is how a cost model that charges only the gather between the two products finds it"
        " better.",
    ]


def across_nodes() -> list[str]:
    lines = ["| ranks (8 a node) | f/h | tokens | all-reduce FFN | all-gather FFN |", "|---:|---:|---:|---:|---:|"]
    for ranks in (16, 32):
        for ratio in (0.25, 1.0, 4.0):
            for tokens in (64, 4096):
                said = layer_us(predicted_us, tokens, ratio, ranks)
                assert said is not None
                lines.append(f"| {ranks} | {ratio:g} | {tokens:,} | {said[0]:.0f} | {said[1]:.0f} |")
    return lines


def page() -> str:
    parts = [
        "# All-gather-based FFN against all-reduce-based FFN",
        "",
        "Written by `python benchmarks/ffn_collectives.py --write`; do not edit.",
        "",
        "Both split an FFN of hidden size h and intermediate size f over the same ranks. The **all-reduce** form",
        "(Megatron) shards the output features of the first product and the contracted ones of the second, and adds up",
        "the partial outputs: one all_reduce of `tokens x h`. The **all-gather** form shards the output features of",
        "both: an all_gather of `tokens x f` between them, and, since whatever comes next reads whole rows, an",
        "all_gather of `tokens x h` behind them: the *re-gather*. Each rank computes and stores the same in both, so",
        "only collectives differ. Per rank `2 h (n-1)/n` elements of a token cross the link in one,",
        "`(f + h)(n-1)/n` in the other: the gather form moves less where f < h, and pays two latencies for one.",
        "",
        "For routed experts the middle is `top_k` rows a token while the sum is taken over a token's experts, so",
        "f/h is `top_k` times the expert's: 8 x 2048/7168 = 2.3 for DeepSeek-V3. A gather between",
        "expert matrices is rarely worth it.",
        "",
        f"## Inside one H100 node, h = {HIDDEN:,}, 16 bits, microseconds",
        "",
        *agreement(),
        "",
        *main_table(),
        "",
        "Bold: the verdict that forgetting the re-gather gets wrong. Predictions: the laws of H100.yaml (NCCL, not",
        "an engine's own all-reduce, which makes the all-reduce form better still at small sizes). Measured:",
        "`nccl_h100` (aiconfigurator-core 0.12.0, Apache-2.0, (c) NVIDIA), medians; every fourth size was kept out of",
        "the fit.",
        "",
        "## Across nodes, predicted only",
        "",
        *across_nodes(),
        "",
        "The two levels of a collective across nodes are not in the measured tables: the law of a level is fitted",
        "inside a node, or assumed between nodes (H100.yaml says which).",
        "",
    ]
    return "\n".join(parts)


def main() -> None:
    text = page()
    if "--write" in sys.argv[1:]:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(text, encoding="utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")
    else:
        print(text)


if __name__ == "__main__":
    main()
