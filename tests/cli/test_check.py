"""``autoshard check`` prints a verdict and exits 0 whatever it is."""

import json

from tests.cli.conftest import Command


def test_an_illegal_layout_is_an_answer(command: Command) -> None:
    ran = command("check", "mixtral-8x7b", "--cluster", "H100x8", "--fix", "tp=6,ep=1", "--engine", "vllm", "--json")
    assert ran.code == 0 and ran.err == ""
    data = json.loads(ran.out)
    assert data["legal"] is False
    rules = {r["rule"] for r in data["reasons"]}
    # 32 % 6, 8 kv heads against 6, 32000 % 6 and 14336 % 6
    assert rules == {"heads % tp", "kv_heads vs tp", "vocab % tp", "expert intermediate % etp"}
    assert all({"rule", "values", "message"} <= r.keys() for r in data["reasons"])
    assert data["nearest"][0]["degrees"]["tp"] in (4, 8)


def test_the_tables_say_the_same(command: Command) -> None:
    arguments = ("check", "mixtral-8x7b", "--cluster", "H100x1", "--engine", "vllm", "--engine-version", "0.11.0")
    ran = command(*arguments)
    assert ran.code == 0
    # 46.7 B parameters in 16 bits: 87 GiB
    for text in ("vLLM 0.11.0", "legal        yes", "fits         no", "weights 87.0", "help 2 devices instead of 1"):
        assert text in " ".join(ran.out.split()) or text in ran.out, ran.out
    good = command("check", "mixtral-8x7b", "--cluster", "H100x8", "--option", "mtp=0")
    assert good.code == 0 and "fits         yes" in good.out
