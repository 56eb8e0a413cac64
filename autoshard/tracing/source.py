"""Where a model comes from, as data: enough to build it again anywhere, at full size or reduced.

A source is JSON. It never carries weights and never runs code found in a config: ``auto_map`` and its like are
ignored, and a config is understood by its ``model_type`` or the class it names, both of which must be transformers'.
"""

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from autoshard.errors import InvalidInputError, UnsupportedModelError
from autoshard.tracing.config_check import check_config, one_line, quiet_transformers
from autoshard.tracing.decoder import TextDecoder
from autoshard.tracing.export import meta_copy
from autoshard.tracing.reduce import depth_with_all_kinds, reduced_fields
from autoshard.tracing.weights import fill_random


class _NoValuesOnMeta(TorchFunctionMode):
    """Initialisation of tensors that hold no values does nothing; it is most of the time that building takes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            tensor = kwargs.get("tensor", args[0] if args else None)
            if isinstance(tensor, Tensor) and tensor.is_meta:
                return tensor
        return func(*args, **kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """What all sources do. ``name`` is what people call the model."""

    name: str

    @property
    def is_data(self) -> bool:
        """Whether :meth:`to_dict` says all: the code that builds the model is transformers' or ships with autoshard."""
        return False

    def build(
        self,
        device: str = "meta",
        dtype: str = "bfloat16",
        seed: int | None = None,
        experts: str | None = None,
    ) -> nn.Module:
        """The model in eval mode, without loading weights.

        Args:
            device: where; on ``meta`` it takes no memory at any size.
            dtype: of the parameters, a torch dtype name.
            seed: on a real device, fill *all* parameters (norms and routers too) with random values that depend on
                the seed and the parameter's name only; None leaves the model's own initialisation.
            experts: ``"grouped_mm"`` or ``"eager"``, how transformers' expert modules run (float64 needs eager).

        Raises:
            InvalidInputError: if the source's values cannot give a model.
        """
        before = torch.get_default_dtype()
        torch.set_default_dtype(getattr(torch, dtype))
        try:
            with torch.device(device), _NoValuesOnMeta(), quiet_transformers():
                model = self._make(dtype, experts).eval()
        finally:
            torch.set_default_dtype(before)
        if seed is not None and device != "meta":
            fill_random(model, seed)
        return model

    def reduced(
        self,
        *,
        tp: int = 1,  # noqa: ARG002
        ep: int = 1,  # noqa: ARG002
        etp: int = 1,  # noqa: ARG002
        nproc: int = 4,  # noqa: ARG002
        pp: int = 1,  # noqa: ARG002
        plan_tp: int | None = None,  # noqa: ARG002
    ) -> "ModelSource":
        """A small model of the same architecture, every dimension divisible by the given degrees.

        The first layers up to and including one of every kind are kept (at least two), with gating, biases, norms,
        ties, window and top-k as they are; widths, experts, depth and vocabulary shrink.

        Args:
            tp: tensor-parallel degree of the reduced run; likewise ``ep``, ``etp`` and the world size ``nproc``.
            ep: expert-parallel degree.
            etp: expert-tensor-parallel degree.
            nproc: ranks of the reduced run; fewer than these where all that runs has the degrees above.
            pp: pipeline stages, each of which gets a layer (the model itself must have as many).
            plan_tp: tensor-parallel degree of the full plan; where it exceeds the kv heads, ``tp`` will exceed the
                reduced kv heads as well.

        Raises:
            UnsupportedModelError: if the model's sizes are not known by name.
        """
        raise UnsupportedModelError(
            f"{self.name}: a model without a config of named sizes cannot be reduced; give the model through a "
            "config.json, or a dataclass config in its `config` attribute"
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON form; :func:`source_from_dict` reads it."""
        raise UnsupportedModelError(f"{self.name}: only a live module is known, which cannot be written down")

    def _make(self, dtype: str, experts: str | None) -> nn.Module:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSource(ModelSource):
    """A transformers model: the class's name and its config as plain data, validated on construction.

    ``whole`` is the config of the multimodal model that ``config`` is the text part of. A class that is a bare decoder
    (``...TextModel``) gets a head.

    Raises:
        InvalidInputError: for a config that does not describe a model, naming the rule, the value and what would do.
        UnsupportedModelError: for an architecture transformers does not have.
    """

    class_name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    whole: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        check_config(self.config, self.class_name)

    @property
    def is_data(self) -> bool:
        """See :meth:`ModelSource.is_data`."""
        return True

    def hf_config(self) -> Any:
        """The transformers config object.

        Raises:
            InvalidInputError: if transformers refuses the values.
        """
        import transformers

        config_class = getattr(transformers, self.class_name).config_class
        try:
            with quiet_transformers():
                return config_class(**_sizes_only(self.config))
        except Exception as error:
            raise InvalidInputError(f"{self.name}: transformers refuses the config: {one_line(error)}") from error

    def reduced(
        self, *, tp: int = 1, ep: int = 1, etp: int = 1, nproc: int = 4, pp: int = 1, plan_tp: int | None = None
    ) -> ModelSource:
        """See :meth:`ModelSource.reduced`."""
        depth = max(depth_with_all_kinds(self.build()), pp)
        effective = {**self.hf_config().to_dict(), **self.config}
        fields = reduced_fields(effective, depth=depth, degrees=(tp, etp, nproc), tp=tp, ep=ep, plan_tp=plan_tp)
        sizes = {k: v for k, v in self.config.items() if k != "quantization_config"}  # its blocks do not shrink
        return replace(self, name=f"{self.name}-reduced", config={**sizes, **fields}, whole=None)

    def to_dict(self) -> dict[str, Any]:
        """See :meth:`ModelSource.to_dict`."""
        out = {"kind": "config", "name": self.name, "class_name": self.class_name, "config": dict(self.config)}
        return out if self.whole is None else {**out, "whole": dict(self.whole)}

    def _make(self, dtype: str, experts: str | None) -> nn.Module:
        import transformers

        config = self.hf_config()
        options = {} if experts in (None, "grouped_mm") else {"experts_implementation": experts}
        try:
            model: nn.Module = getattr(transformers, self.class_name)._from_config(config, dtype=dtype, **options)
            if self.class_name.endswith("TextModel"):
                model = TextDecoder(model, tied=bool({**self.config, **(self.whole or {})}.get("tie_word_embeddings")))
        except Exception as error:
            raise InvalidInputError(
                f"{self.name}: {self.class_name} cannot be built from this config: {one_line(error)}"
            ) from error
        return model


@dataclass(frozen=True, slots=True, kw_only=True)
class FactorySource(ModelSource):
    """A plain module: ``target`` (``"package.module:function"``) called with ``kwargs``.

    With ``config_target`` the keyword arguments go to that config class first, and its instance to ``target``.
    """

    target: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    config_target: str | None = None

    @property
    def is_data(self) -> bool:
        """See :meth:`ModelSource.is_data`."""
        return all(t is None or t.startswith(OWN_MODELS) for t in (self.target, self.config_target))

    def reduced(
        self, *, tp: int = 1, ep: int = 1, etp: int = 1, nproc: int = 4, pp: int = 1, plan_tp: int | None = None
    ) -> ModelSource:
        """See :meth:`ModelSource.reduced`; sizes are the keyword arguments, under the names configs use."""
        if "num_hidden_layers" not in self.kwargs or "hidden_size" not in self.kwargs:
            model = self.build()
            described = source_of_dataclass(model, self.name)
            if described is None:
                raise UnsupportedModelError(
                    f"{self.name}: {self.target} has no sizes to reduce; give the built module a dataclass `config` "
                    "with hidden_size, num_hidden_layers and their like"
                )
            return described.reduced(tp=tp, ep=ep, etp=etp, nproc=nproc, pp=pp, plan_tp=plan_tp)
        depth = max(depth_with_all_kinds(self.build()), pp)
        fields = reduced_fields(self.kwargs, depth=depth, degrees=(tp, etp, nproc), tp=tp, ep=ep, plan_tp=plan_tp)
        return replace(
            self,
            name=f"{self.name}-reduced",
            kwargs={**self.kwargs, **fields},
        )

    def to_dict(self) -> dict[str, Any]:
        """See :meth:`ModelSource.to_dict`."""
        out: dict[str, Any] = {"kind": "factory", "name": self.name, "target": self.target, "kwargs": dict(self.kwargs)}
        return out if self.config_target is None else {**out, "config_target": self.config_target}

    def _make(self, dtype: str, experts: str | None) -> nn.Module:  # noqa: ARG002
        factory = _import_target(self.target)
        try:
            if self.config_target is None:
                model = factory(**self.kwargs)
            else:
                model = factory(_import_target(self.config_target)(**self.kwargs))
        except Exception as error:
            raise InvalidInputError(f"{self.name}: {self.target} raised {one_line(error)}") from error
        if not isinstance(model, nn.Module):
            raise InvalidInputError(
                f"{self.name}: {self.target} must return a torch.nn.Module, got {type(model).__name__}"
            )
        return model


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSource(ModelSource):
    """A live module that nothing describes: it can be traced, but neither written down nor reduced."""

    module: nn.Module

    def _make(self, dtype: str, experts: str | None) -> nn.Module:  # noqa: ARG002
        return meta_copy(self.module)


OWN_MODELS = "autoshard_models."
"""Package of the plain models that ship; the only code that data may name."""


def source_from_dict(data: Mapping[str, Any], *, trusted: bool = False) -> ModelSource:
    """Read what :meth:`ModelSource.to_dict` wrote. Nothing is imported or run before ``build``.

    Args:
        data: the written source.
        trusted: whether the data may name code outside this package to build the model. Only what the user said on
            the command line or in Python, never what a file says.

    Raises:
        InvalidInputError: for anything else, or code that untrusted data may not name.
    """
    fields = {k: v for k, v in data.items() if k != "kind"}
    kinds: dict[str, type[ModelSource]] = {"config": ConfigSource, "factory": FactorySource}
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidInputError(f"unknown kind of model source {kind!r}; known are {sorted(kinds)}")
    texts = [fields.get(n) for n in ("name", "class_name", "target", "config_target") if n in fields]
    sizes = [fields.get(n) for n in ("config", "kwargs") if n in fields]
    if not (all(isinstance(x, str) for x in texts) and all(isinstance(x, Mapping) for x in sizes)):
        raise InvalidInputError(f"model source of kind {kind!r}: names must be strings, config and kwargs objects")
    targets = [t for t in (fields.get("target"), fields.get("config_target")) if t is not None]
    foreign = [t for t in targets if not t.startswith(OWN_MODELS)]
    if foreign and not trusted:
        raise InvalidInputError(
            f"the file names the code {foreign[0]!r} to build its model; files are data and run no code:"
            " name the model yourself as well"
        )
    try:
        return kinds[kind](**fields)
    except TypeError as error:
        raise InvalidInputError(f"model source of kind {kind!r}: {one_line(error)}") from error


def source_of_dataclass(model: nn.Module, name: str) -> FactorySource | None:
    """The source of a plain module that keeps a dataclass config and is built from it alone."""
    config = getattr(model, "config", None)
    if not is_dataclass(config) or isinstance(config, type) or "<locals>" in type(model).__qualname__:
        return None
    return FactorySource(
        name=name,
        target=f"{type(model).__module__}:{type(model).__qualname__}",
        kwargs=asdict(config),
        config_target=f"{type(config).__module__}:{type(config).__qualname__}",
    )


_NOT_SIZES = {
    "architectures",
    "auto_map",
    "custom_pipelines",
    "model_type",
    "quantization_config",
    "torch_dtype",
    "dtype",
}
_NOT_SIZES |= {"attn_implementation", "experts_implementation", "use_kernels", "trust_remote_code"}
"""Keys of a config that say how to run or load a model. Some can make transformers fetch and run code."""


def _sizes_only(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` without what could run code or choose kernels, at any depth."""
    return {
        key: _sizes_only(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in _NOT_SIZES and not key.startswith("_")
    }


def _import_target(target: str) -> Any:
    """The object ``package.module:name`` names.

    Raises:
        InvalidInputError: if it does not exist.
    """
    module_name, _, attribute = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise InvalidInputError(f"{target}: cannot import {module_name}: {one_line(error)}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InvalidInputError(f"{target}: {module_name} has no {attribute!r}")
        found = getattr(found, part)
    return found
