"""Serving runs against the law: what a table leaves unsaid, fits on rows made by hand, choices under limits."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoshard.calibrate.serving import evaluate_serving
from autoshard.calibrate.serving.choice import choices_under_limits
from autoshard.calibrate.serving.evaluate import error_from
from autoshard.calibrate.serving.fit import Constants, fit_constants, leave_one_out
from autoshard.calibrate.serving.passes import TERMS, Passes
from autoshard.calibrate.serving.rows import COLUMNS, Run, catalogue_name, read_runs
from autoshard.calibrate.serving.skewed import SkewedPasses
from autoshard.calibrate.tables import Table, read_table
from autoshard.errors import InvalidInputError
from tests.graphs import GraphMaker

ROW = {
    "system": "h100_sxm",
    "model_path": "owner/Small-Instruct",
    "backend": "vllm",
    "precision_label": "fp8",
    "isl": "1000",
    "osl": "100",
    "concurrency": "16",
    "tp_size": "4",
    "attention_dp_size": "1",
    "moe_tp_size": "2",
    "moe_ep_size": "2",
    "silicon_ttft_ms": "200",
    "silicon_tpot_ms": "10",
}


def table(*rows: dict[str, str]) -> Table:
    full = [{**ROW, **row} for row in rows]
    return Table("runs.csv", {name: tuple(r[name] for r in full) for name in {**ROW, **full[0]}})


def test_what_a_table_leaves_unsaid() -> None:
    assert catalogue_name("Qwen/Qwen3-235B-A22B-FP8") == "qwen3-235b-a22b"
    assert catalogue_name("nvidia/Llama-3.1-8B-Instruct-FP8") == "llama-3.1-8b"
    assert catalogue_name("deepseek-ai/DeepSeek-R1") == "deepseek-v3", "R1 has V3's shapes"
    drawn = {"lengths_note": "lengths ~U[0.8,1.0]x nominal"}
    run = read_runs(table({"backend": "trtllm", "moe_ep_size": "0", **drawn})).runs[0]
    assert (run.isl, run.osl, run.ep, run.etp, run.kv_dtype) == (900, 90, 1, 4, "float8_e4m3fn")
    assert run.formats(routed=True).experts == "fp8_block" and run.formats(routed=False).dense == "fp8"
    plain = read_runs(table({"precision_label": "", "lengths_note": ""})).runs[0]
    assert plain.formats(routed=True).experts == "bfloat16" and plain.kv_dtype == "bfloat16" and plain.isl == 1000
    fp4 = read_runs(table({"precision_label": "fp4", "lengths_note": ""})).runs[0].formats(routed=True)
    assert (fp4.dense, fp4.experts) == ("bfloat16", "w4a16_mxfp4")
    turns = [{"backend_version": v, "measured": day} for v, day in (("0.12.0", ""), ("0.18.0", ""), ("", "2025-11-02"))]
    assert [run.turns for run in read_runs(table(*turns)).runs] == [True, False, True]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"backend": "tgi"}, "row 2: unknown backend 'tgi': known are vllm"),
        ({"precision_label": "int3"}, "row 2: unknown precision_label 'int3'"),
        ({"concurrency": "-1"}, "row 2: concurrency must be positive, got -1"),
        ({"silicon_tpot_ms": "fast"}, "row 2: silicon_tpot_ms is no number: 'fast'"),
        ({"backend_version": "main"}, "row 2: cannot read the version 'main': it is written as 0.11.2"),
        ({"moe_ep_size": "3"}, "moe_ep_size=3 does not divide tp_size x attention_dp_size = 4"),
        ({"system": "h1000"}, "unknown device 'H1000': known are A100"),
        ({"model_path": "owner/other"}, "none of its models is in the catalogue: other"),
    ],
)
def test_a_bad_table_gives_one_line(wrong: dict[str, str], message: str) -> None:
    graph = GraphMaker(hidden=512, heads=16, experts=8, intermediate=512).graph("mm")
    with pytest.raises(InvalidInputError, match=message.replace("?", ".")) as error:
        evaluate_serving(table(wrong), lambda name: graph if name == "small" else None)
    assert "\n" not in str(error.value)


def made_passes(n: int, seed: int) -> Passes:
    rng = np.random.default_rng(seed)
    shape = (n, len(TERMS))
    return Passes(
        rng.uniform(1e-4, 3e-3, shape),
        rng.uniform(1e-3, 2e-2, shape),
        rng.integers(1, 128, n).astype(float),
        rng.integers(100, 2000, n).astype(float),
        np.zeros(n),
    )


def test_constants_that_made_rows_are_found_again() -> None:
    passes = made_passes(300, 0)
    true = Constants(sequence_s=2e-5, interference=0.9, prompt_passes=3.0, queue_share=0.05)
    tpot, ttft = true.tpot_s(passes), true.ttft_s(passes)
    found = fit_constants(SkewedPasses((0.0,), (passes,)), tpot, ttft, [("a", "vllm")] * 300)
    for name in ("sequence_s", "interference", "prompt_passes", "queue_share"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.01), name
    # by hand, for the first row: D + sigma n + phi (n - 1) P / osl
    d, p, n, osl = passes.decode_s[0], passes.prompt_s[0], passes.requests[0], passes.osl[0]
    assert tpot[0] == pytest.approx(d + 2e-5 * n + 0.9 * (n - 1) * p / osl)
    assert ttft[0] == pytest.approx((p + d + 2e-5 * n) * (3.0 + 0.05 * (n - 1)))


def test_the_hosts_time_a_step_is_found_on_rows_that_take_turns() -> None:
    made = made_passes(300, 4)
    passes = replace(made, turns=(np.arange(300) % 3 == 0).astype(float))
    true = Constants(step_s=2e-3, sequence_s=2e-5, interference=0.9, prompt_passes=3.0, queue_share=0.05)
    tpot = true.tpot_s(passes)
    assert tpot - made.decode_s - true.prompts_s(made) == pytest.approx(2e-3 * passes.turns + 2e-5 * made.requests)
    found = fit_constants(SkewedPasses((0.0,), (passes,)), tpot, true.ttft_s(passes), [("a", "vllm")] * 300)
    assert found.step_s == pytest.approx(2e-3, rel=0.01) and found.sequence_s == pytest.approx(2e-5, rel=0.01)
    none = fit_constants(SkewedPasses((0.0,), (made,)), true.tpot_s(made), true.ttft_s(made), [("a", "vllm")] * 300)
    assert none.step_s == 0.0, "no row says what it is"


def test_a_models_own_rows_do_not_decide_its_constants() -> None:
    passes = made_passes(240, 1)
    groups = [(("a", "b", "c")[i % 3], "vllm") for i in range(240)]
    true = Constants(sequence_s=2e-5, interference=0.9, prompt_passes=3.0, queue_share=0.05)
    tpot, ttft = true.tpot_s(passes), true.ttft_s(passes)
    own, priced = np.array([model == "a" for model, _ in groups]), SkewedPasses((0.0,), (passes,))
    found = leave_one_out(priced, np.where(own, 7 * tpot, tpot), np.where(own, 7 * ttft, ttft), groups)
    assert found["a"].interference == pytest.approx(0.9, rel=0.02)
    assert found["a"].prompt_passes == pytest.approx(3.0, rel=0.02)


def test_a_skew_between_those_that_were_priced_is_found_again() -> None:
    even, slow = made_passes(200, 2), made_passes(200, 3)
    skewed = replace(even, decode=even.decode + slow.decode, prompt=3 * even.prompt)
    priced = SkewedPasses((0.0, 1.0), (even, skewed))
    # a quarter of the way: a quarter of what is added
    quarter = priced.at(0.25)
    assert quarter.decode == pytest.approx(even.decode + 0.25 * slow.decode)
    assert quarter.prompt == pytest.approx(1.5 * even.prompt)
    each = priced.at(np.linspace(0.0, 1.0, 200))
    assert (each.decode[0] == even.decode[0]).all() and each.decode[-1] == pytest.approx(skewed.decode[-1])
    true = Constants(sequence_s=2e-5, interference=0.9, prompt_passes=3.0, queue_share=0.05)
    tpot, ttft = true.tpot_s(quarter), true.ttft_s(quarter)
    found = fit_constants(priced, tpot, ttft, [("a", "vllm")] * 200)
    assert found.routing_skew == pytest.approx(0.25, rel=0.02) and found.interference == pytest.approx(0.9, rel=0.02)


def run(tp: int, concurrency: float) -> Run:
    return Run(
        line=2, model="m", device="H100", engine="vllm", label="fp8", isl=1000, osl=100,
        concurrency=concurrency, tp=tp, dp=1, ep=1, etp=tp,
    )  # fmt: skip


def test_choice_under_a_limit_by_hand() -> None:
    runs = [run(2, 16), run(4, 16), run(4, 64)]
    measured = np.array([0.020, 0.012, 0.030])
    # tokens/s/GPU measured: 16/(2*.02)=400, 16/(4*.012)=333, 64/(4*.03)=533
    right = choices_under_limits(runs, measured, measured)
    # 15 ms: the second; 25: the first; 40 and 60: the third
    assert (right["picks"], right["missed_share"], right["regret"]) == (4, 0.0, 0.0)
    # thought 10 ms each but for the first: at 15, 25 and 40 the third is picked, which takes 30 > 1.1 * 25
    wrong = choices_under_limits(runs, np.array([0.07, 0.010, 0.010]), measured)
    assert wrong["picks"] == 4 and wrong["missed_share"] == 0.5 and wrong["regret"] == 0.0
    # the second is picked throughout: 333 against 333, 400, 533 and 533
    shy = choices_under_limits(runs, np.array([0.07, 0.010, 0.07]), measured)
    assert shy["regret"] == pytest.approx((0 + (1 - 333.333 / 400) + 2 * (1 - 333.333 / 533.333)) / 4, rel=1e-4)
    assert choices_under_limits(runs[1:], measured[1:], measured[1:])["picks"] == 0, "one layout is no choice"


def test_repeats_of_a_candidate_are_one_candidate() -> None:
    runs = [run(2, 16), run(4, 16), run(4, 16)]
    measured = np.array([0.020, 0.014, 0.010])
    # the second measured 14 and 10 ms: 12, so 16/(4*.012) = 333 against 16/(2*.02) = 400 tokens/s/GPU
    found = choices_under_limits(runs, np.array([0.020, 0.012, 0.012]), measured)
    assert (found["picks"], found["missed_share"], found["regret"]) == (4, 0.0, 0.0)
    # apart, 15 ms picks the first of the repeats (286), though the other had 400; 25 to 60 ms pick 400 of 400
    assert found["apart"]["regret"] == pytest.approx((1 - 285.714 / 400) / 4, rel=1e-4)


def test_the_whole_evaluation_on_a_small_model() -> None:
    graph = GraphMaker(hidden=512, heads=16, experts=8, intermediate=512).graph("mm")
    rows = [{"concurrency": str(c), "tp_size": str(tp), "moe_tp_size": str(tp), "moe_ep_size": "1"}
            for c in (1, 8, 64) for tp in (1, 4)]  # fmt: skip
    skipped = {"model_path": "owner/other"}
    data = evaluate_serving(table(*rows, skipped), lambda name: graph if name == "small" else None)
    assert data["rows"] == 6 and list(data["skipped"]) == ["other"] and "dense" not in data
    part = data["moe"]
    assert part["tpot"]["rows"] == part["tpot"]["by"]["small H100"]["rows"] == 6
    assert {"median_ape", "p90_ape", "rows", "by"} <= set(part["ttft"])
    assert set(part["terms"]) == {*TERMS, "host", "prompts", "kernels alone"}
    (origin,) = part["error_from"].values()
    assert origin["median_ape"] == pytest.approx(part["tpot"]["median_ape"]) and set(origin["terms"]) >= {*TERMS}
    # a factor of 1 is among those tried: none is worse than the prediction
    assert all(each["median_ape"] <= origin["median_ape"] + 1e-9 for each in origin["terms"].values())


def test_the_term_that_is_wrong_is_named() -> None:
    passes = made_passes(120, 5)
    said = Constants(sequence_s=2e-5, interference=0.9)
    wrong = TERMS.index("experts")
    measured = said.tpot_s(replace(passes, decode=passes.decode * np.where(np.arange(len(TERMS)) == wrong, 2.0, 1.0)))
    labels, rows, own = np.array(["m vllm H100"] * 120), np.ones(120, dtype=bool), [said] * 120
    origin = error_from(labels, passes, own, said.tpot_s(passes), measured, rows)["m vllm H100"]
    assert origin["terms"]["experts"] == {"factor": 2.0, "median_ape": pytest.approx(0.0, abs=1e-9)}
    others = [each["median_ape"] for name, each in origin["terms"].items() if name != "experts"]
    assert min(others) > 1.0 and origin["median_ape"] >= max(others)


def test_a_table_without_a_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(",".join(c for c in ROW if c != "concurrency") + "\n" + ",".join(["1"] * (len(ROW) - 1)) + "\n")
    with pytest.raises(InvalidInputError, match="lacks column 'concurrency'"):
        read_table(path, COLUMNS)
