"""A user's mistake is one line on stderr and exit code 2; nothing is printed or written besides."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

SMALL = {
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 512,
}


@pytest.fixture
def small(write_config: Callable[[str], str]) -> str:
    return write_config(json.dumps(SMALL))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "mixtral-8x7"], "unknown model 'mixtral-8x7': did you mean mixtral-8x7b?"),
        (["plan", "zzz"], "unknown model 'zzz': known are mixtral-8x7b, "),
        (["plan", "no/such/folder"], "no such file or folder"),
        (["plan", "no_such_package:build"], "cannot import no_such_package"),
        (["plan", "mixtral-8x7b", "--cluster", "H100x0"], "needs at least 1"),
        (["plan", "mixtral-8x7b", "--cluster", "H10x8"], "did you mean"),
        (["plan", "mixtral-8x7b", "--cluster", "nowhere.yaml"], "cannot read cluster file"),
        (["plan", "mixtral-8x7b", "--cluster", "H100x999999999"], "at most 131,072"),
        (["plan", "mixtral-8x7b", "--context", "9" * 30], "more than 1,000,000,000 tokens"),
        (["validate", "mixtral-8x7b", "--timeout-s", "nan"], "must be a positive number of seconds"),
        (["validate", "mixtral-8x7b", "--nproc", "100000"], "at most 256 ranks"),
        (["validate", "mixtral-8x7b", "--simulate-ranks", "0"], "simulate_ranks=0 must be at least 1"),
        (["validate", "mixtral-8x7b", "--device", "tpu"], "cannot validate on 'tpu': this machine has cpu"),
        (
            ["plan", "mixtral-8x7b", "--fix", "tpp=8"],
            "cannot fix 'tpp': degrees are pp, dp, tp, ep, etp, batch, replicas",
        ),
        (["check", "mixtral-8x7b", "--engine", "vlm"], "unknown engine 'vlm': known are sglang, torch, "),
        (["check", "mixtral-8x7b", "--quant", "fp6"], "unknown quantisation 'fp6': known are bf16"),
        (["check", "mixtral-8x7b", "--fix", "tp=0"], "tp=0 must be a whole number of at least 1"),
        (["plan", "mixtral-8x7b", "--fix", "tp=0"], "tp=0 must be a whole number of at least 1"),
        (["plan", "mixtral-8x7b", "--fix", "tp"], "cannot read 'tp' of --fix 'tp': it is written as tp=8,ep=8"),
        (["plan", "mixtral-8x7b", "--fix", "tp=1,tp=2"], "gives tp twice"),
        (["plan", "mixtral-8x7b", "--stages", "16"], "stages 16 deal out 16 layers, mixtral-8x7b has 32"),
        (["plan", "mixtral-8x7b", "--pin", "q=2"], "q=2: a choice is 0 (shard the output), 1 "),
        (
            ["plan", "mixtral-8x7b", "--search", "rll"],
            "unknown search 'rll'; known are rl, exact, rl-paper, megatron, anneal, mcmc, evolution, walk, random",
        ),
        (["plan", "mixtral-8x7b", "--phase", "serve"], "phase 'serve' needs --isl and --osl"),
        (["plan", "mixtral-8x7b", "--effects", "warp"], "unknown effect 'warp': known are overlap, two-batch, "),
        (["compare", "mixtral-8x7b", "--effects", "contention"], "needs 'overlap' or 'two-batch'"),
        (["search", "mixtral-8x7b"], "search needs --measure"),
        (["search", "mixtral-8x7b", "--measure", "--nproc", "0"], "nproc=0 must be from 1 to 16"),
        (["search", "mixtral-8x7b", "--measure", "--budget", "0"], "budget=0 must be from 1 to 10,000"),
        (["search", "mixtral-8x7b", "--measure", "--state", "no/such/folder/x"], "there is no folder no/such/folder"),
        (["plan", "mixtral-8x7b", "--phase", "train"], "unknown phase 'train'"),
        (["size", "mixtral-8x7b", "--rate", "0"], "rate=0 must be a positive number"),
        (["calibrate", "eval", "no.csv", "--kind", "serving"], "cannot read table no.csv"),
        (["plan", "mixtral-8x7b", "--dtype", "bf17"], "unknown dtype 'bf17'"),
        (["plan", "mixtral-8x7b", "--ttft-ms", "5"], "limits prefill, not decode"),
        (["plan", "mixtral-8x7b", "--budget", "many"], "Invalid value for '--budget'"),
        (["plan", "mixtral-8x7b", "--osl", "5"], "osl=5 has no meaning in phase 'decode'"),
        (["plan"], "MODEL"),
        (["plam", "mixtral-8x7b"], "plam"),
        (["compare", "mixtral-8x7b", "--methods", "rl,hill"], "unknown search 'hill'"),
        (["compare", "mixtral-8x7b", "--seeds", "0"], "seeds=0 must be at least 1"),
        (["validate", "no-plan.json"], "no such file"),
        (["validate", "mixtral-8x7b", "--nproc", "0"], "nproc=0 must be at least 1"),
        (["validate", "mixtral-8x7b", "--dtype", "bf16"], "unknown dtype 'bf16': choose from float32, float64, both"),
    ],
    ids=lambda value: " ".join(value[:4]) if isinstance(value, list) else None,
)
def test_before_any_model_is_built(command, arguments: list[str], says: str) -> None:  # type: ignore[no-untyped-def]
    assert says in command(*arguments).error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--seed", "-1"], "seed=-1 must be a whole number from 0"),
        (["--fix", "batch=" + "9" * 20], "is more than 1,000,000,000"),
        (["--pin", "qq=0"], "cannot pin 'qq': tiny has no such op; ops are residual, dispatch, embed"),
        (["--pin", "attn_add=0"], "it has no choice of its own"),
        (["--pin", "layers/embed=0"], "cannot pin 'layers/embed'"),
        (["--pin", "attention=1"], "the choices of layers/attention are 0, none"),
        (["--fix", "tp=24"], "tp=24 does not divide 8 attention heads; nearest tp that does: 8"),
        (["--fix", "ep=5"], "ep=5 leaves some ranks without any of 8 experts; nearest ep that divides them: 4"),
        (["--fix", "pp=3"], "pp=3 stages for 2 layers; at most 2"),
        (["--fix", "dp=128"], "needs 128 devices; the cluster H100x64 has 64"),
        (["--fix", "dp=6,tp=8,ep=4"], "dp*tp = ep*etp"),
        (["--tpot-ms", "0.0001"], "meets TPOT <= 0.0001 ms; the fastest is"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_that_need_the_model(command, small: str, tmp_path: Path, arguments: list[str], says: str) -> None:  # type: ignore[no-untyped-def]
    assert says in command("plan", small, *arguments, "-o", str(tmp_path / "plan.json")).error
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--pin", "qq=0"], "cannot pin 'qq'"),
        (["--pin", "q=0", "--fix", "tp=1"], "choice 0 of layers/q: same as replicated at tp=1"),
        (["--fix", "tp=24"], "tp=24 does not divide 8 attention heads; nearest tp that does: 8"),
        (["--fix", "tp=8,ep=3"], "must equal ep*etp"),
        (["--fix", "dp=128"], "needs 128 devices; the cluster has 64"),
        (["--fix", "dp=4,batch=6"], "batch=6 must be a multiple of dp=4"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_simulate(command, small: str, arguments: list[str], says: str) -> None:  # type: ignore[no-untyped-def]
    assert says in command("simulate", small, *arguments).error


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON: line 1"),
        ("[]", "a config is an object"),
        ("[" * 100_000, "nested too deeply"),
        ("{}", "config has neither model_type nor architectures"),
        ('{"model_type": "mixtrall"}', "has no causal language model of type 'mixtrall'"),
        (json.dumps({**SMALL, "hidden_size": None}), "config has no hidden_size"),
        (json.dumps({**SMALL, "num_attention_heads": 7}), "must be a multiple of num_attention_heads (7)"),
        (json.dumps({**SMALL, "num_experts_per_tok": 0}), "experts per token must be at least 1"),
        (json.dumps({**SMALL, "num_local_experts": "8"}), "num_local_experts must be an integer, got '8'"),
    ],
    ids=[
        "not json",
        "a list",
        "too deep",
        "empty",
        "unknown type",
        "no width",
        "heads",
        "no expert a token",
        "text for a number",
    ],
)
def test_malformed_configs(command, write_config: Callable[[str], str], text: str, says: str) -> None:  # type: ignore[no-untyped-def]
    assert says in command("plan", write_config(text)).error


def test_too_little_memory_says_what_would_help(command) -> None:  # type: ignore[no-untyped-def]
    error = command("plan", "qwen3-235b-a22b", "--cluster", "H100x2").error
    assert "qwen3-235b-a22b does not fit on H100x2" in error
    # 235.1 B parameters in 16 bits are 437.9 GiB: 109 a device on 4, above 79.2, and 73 on 6
    assert "what would help: 6 devices (3x)" in error


@pytest.mark.parametrize(
    ("output", "says"),
    [("missing/plan.json", "there is no folder"), (".", "it is a folder"), ("/proc/plan.json", "cannot write")],
)
def test_unwritable_output_is_found_before_the_search(command, tmp_path: Path, output: str, says: str) -> None:  # type: ignore[no-untyped-def]
    assert says in command("plan", "mixtral-8x7b", "-o", str(tmp_path / output)).error
    assert list(tmp_path.iterdir()) == []


def test_a_factory_that_raises_and_one_that_returns_no_module(command, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "my_models.py").write_text("def bad():\n    raise KeyError('x')\ndef none():\n    return 3\n")
    monkeypatch.chdir(tmp_path)
    assert "my_models:bad raised KeyError: 'x'" in command("trace", "my_models:bad").error
    assert "must return a torch.nn.Module, got int" in command("trace", "my_models:none").error
    assert "my_models has no 'no'" in command("trace", "my_models:no").error
