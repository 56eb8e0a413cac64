"""Engine files: what an engine accepts, how it pads and places weights, and how it divides a device's memory.

A file in ``data/`` is data only, read by pydantic; its expressions are checked when it is read
(`autoshard.engines.expression`). Memory sizes are in GiB, converted here.
"""

from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from autoshard.engines.expression import Expression
from autoshard.errors import InvalidInputError
from autoshard.versions import in_range, parse_version

Over = Literal["once", "attention", "latent", "experts", "dense", "shared"]
"""What a rule is asked for: once, or for every distinct core, experts, dense or shared FFN of the model."""

BudgetRule = Literal["of_total", "of_static", "of_free"]
"""Which bytes the KV cache gets, with ``f`` the fraction:

``of_total``   ``f * total - (weights + activations + other)`` (vLLM's gpu_memory_utilization)
``of_static``  ``f * (total - context) - weights`` (SGLang's mem_fraction_static; the rest is for activations, graphs)
``of_free``    ``f * (total - weights - activations - other)`` (TensorRT-LLM's free_gpu_memory_fraction)
"""


def _expression(value: Any) -> Any:
    if isinstance(value, Expression):
        return value
    return Expression(str(value).lower() if isinstance(value, bool) else str(value))


Formula = Annotated[Expression, BeforeValidator(_expression)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class Rule(_Model):
    """One rule.

    It applies where the version, the quantisation and ``when`` match; ``require`` must then be true. ``effect`` says
    what happens otherwise: a ``note`` does not make a plan illegal.
    """

    name: str
    over: Over = "once"
    when: Formula = Expression("1")
    require: Formula
    message: str
    values: tuple[str, ...]
    versions: str = ""
    quant: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    effect: Literal["refused", "crashes", "wrong results", "note"] = "refused"
    source: str

    def applies_to(self, version: str, quant: str, model_class: str) -> bool:
        """Whether version, quantisation and model class are ones the rule is about."""
        return (
            in_range(version, self.versions)
            and (not self.quant or quant in self.quant)
            and (not self.models or model_class in self.models)
        )


class Padding(_Model):
    """Multiples that a rank's shard of the experts is padded to; the first entry that applies counts."""

    quant: tuple[str, ...] = ()
    when: Formula = Expression("1")
    hidden: int = 1
    intermediate: int = 1
    source: str


class Memory(_Model):
    """How a device's memory is divided.

    In GiB: ``context`` is the process's own (CUDA context, libraries), ``communication`` the buffers of NCCL and the
    engine's all-reduce once there is more than one rank, ``graphs`` captured CUDA graphs. ``graphs_in_budget`` says
    whether the KV budget makes room for these. ``fraction`` is the default of the share that `BudgetRule` speaks of.
    ``logits_bytes`` are held per sequence of ``max_num_seqs`` and vocabulary entry while sampling is profiled.
    ``block_tokens`` is the KV block; ``window_slack`` are tokens that a windowed layer holds beside its window.
    """

    budget: BudgetRule
    fraction: Formula
    context: Annotated[float, Field(ge=0)]
    communication: Formula = Expression("0")
    graphs: Formula = Expression("0")
    graphs_in_budget: Formula = Expression("0")
    max_num_tokens: Formula
    max_num_seqs: Formula
    logits_bytes: Annotated[float, Field(ge=0)] = 4.0
    block_tokens: Annotated[int, Field(ge=1)] = 1
    window_slack: Formula = Expression("0")
    source: Mapping[str, str]


class EngineOption(_Model):
    """Something a launch may set that rules or memory depend on."""

    default: float | str
    meaning: str


class Engine(_Model):
    """An engine of one range of versions."""

    name: str
    title: str
    written_for: str
    versions: str
    flags: str
    options: Mapping[str, EngineOption] = {}
    derived: Mapping[str, Formula] = {}
    splits_mixers: bool = False
    vocab_multiple: int = 1
    padding: tuple[Padding, ...] = ()
    memory: Memory
    rules: tuple[Rule, ...] = ()

    def with_options(self, given: Mapping[str, Any]) -> dict[str, float | str]:
        """All options, those given over the defaults.

        Raises:
            InvalidInputError: for an option the engine does not have.
        """
        found: dict[str, float | str] = {name: o.default for name, o in self.options.items()}
        for name, value in given.items():
            if name not in self.options:
                known = ", ".join(self.options) or "none"
                raise InvalidInputError(f"{self.name} has no option {name!r}: known are {known}")
            found[name] = _like(value, self.options[name].default, name)
        return found


def _like(value: Any, default: float | str, name: str) -> float | str:
    """A given value as what its default is: a text, or a number of at least 0 (a fraction at most 1)."""
    if isinstance(default, str):
        return str(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InvalidInputError(f"option {name}={value} must be a number") from None
    most = 1.0 if name == "fraction" else 1e9
    if not 0 <= number <= most:
        raise InvalidInputError(f"option {name}={value} must be from 0 to {most:,.0f}")
    return number


def engine_names() -> tuple[str, ...]:
    """Engines that have a file."""
    folder = resources.files("autoshard.engines") / "data"
    names = (f.name.removesuffix(".yaml") for f in folder.iterdir() if f.name.endswith(".yaml"))
    return tuple(sorted(n for n in names if n not in ("quantisation", "devices")))


@lru_cache(maxsize=16)
def read_engine(name: str) -> Engine:
    """The engine called ``name``.

    Raises:
        InvalidInputError: for an unknown one; names those that are known.
    """
    wanted = name.strip().lower().replace("tensorrt-llm", "trtllm").replace("dtensor", "torch")
    if wanted not in engine_names():
        raise InvalidInputError(f"unknown engine {name!r}: known are {', '.join(engine_names())}")
    text = (resources.files("autoshard.engines") / "data" / f"{wanted}.yaml").read_text(encoding="utf-8")
    try:
        return Engine(**yaml.safe_load(text))
    except ValidationError as error:
        raise AssertionError(f"the file of engine {wanted} is wrong: {error}") from error


def engine_version(engine: Engine, version: str | None) -> str:
    """The version meant: the one the file was written for by default.

    Raises:
        InvalidInputError: for one outside the range that the file's rules are known to hold for.
    """
    if version is None:
        return engine.written_for
    parse_version(version)
    if not in_range(version, engine.versions):
        raise InvalidInputError(
            f"the rules of {engine.name} are known for versions {engine.versions}, not {version};"
            f" they were written for {engine.written_for}"
        )
    return version
