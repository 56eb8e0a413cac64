"""From whatever names a model to its source."""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from autoshard.errors import InvalidInputError
from autoshard.tracing.config_check import class_of
from autoshard.tracing.source import ConfigSource, FactorySource, ModelSource, ModuleSource, source_of_dataclass

_TARGET = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")


def resolve(spec: Any) -> ModelSource:
    """The source of a model.

    Args:
        spec: a source; a catalogue entry (``name``, ``kind``, ``config``, ``target``); a path to a ``config.json`` or
            its folder; ``"package.module:factory"``; a transformers config, or one as a dict; a live module.

    Raises:
        InvalidInputError: for anything else, or values that do not describe a model.
        UnsupportedModelError: for an architecture that is not known.
    """
    if isinstance(spec, ModelSource):
        return spec
    if isinstance(spec, nn.Module):
        return _of_module(spec)
    if isinstance(spec, Mapping):
        return _of_config(spec, str(spec.get("_name_or_path") or spec.get("model_type") or "model"))
    if hasattr(spec, "model_type") and hasattr(spec, "to_dict"):
        return _of_config(spec.to_dict(), str(getattr(spec, "name_or_path", "") or spec.model_type))
    if hasattr(spec, "kind") and hasattr(spec, "config") and hasattr(spec, "name"):
        return _of_entry(spec)
    if isinstance(spec, (str, Path)):
        return _of_text(spec)
    raise InvalidInputError(
        f"a model is a catalogue name, a config.json or its folder, package.module:factory, a transformers config or "
        f"a torch module; got {type(spec).__name__}"
    )


def _of_entry(entry: Any) -> ModelSource:
    if entry.kind == "factory":
        return FactorySource(name=entry.name, target=entry.target, kwargs=dict(entry.config))
    return _of_config(entry.config, entry.name)


def _of_config(config: Mapping[str, Any], name: str) -> ConfigSource:
    """A config as data; of a multimodal model, its text part."""
    text = config.get("text_config")
    if isinstance(text, Mapping) and "hidden_size" not in config:
        whole = {k: v for k, v in config.items() if k != "text_config"}
        return ConfigSource(name=name, class_name=class_of(text), config=_as_json(text), whole=_as_json(whole))
    return ConfigSource(name=name, class_name=class_of(config), config=_as_json(config))


def _as_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` as a JSON file would hold it, so that a source equals what is read back."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(config), default=str))
    return plain


def _of_module(module: nn.Module) -> ModelSource:
    name = type(module).__name__
    config: Any = getattr(module, "config", None)
    transformers = sys.modules.get("transformers")
    if hasattr(config, "to_dict") and getattr(transformers, name, None) is type(module):
        return ConfigSource(
            name=str(config.name_or_path or config.model_type), class_name=name, config=_as_json(config.to_dict())
        )
    return source_of_dataclass(module, name) or ModuleSource(name=name, module=module)


def _of_text(spec: str | Path) -> ModelSource:
    path = Path(spec)
    if path.exists():
        return _of_path(path)
    if isinstance(spec, str) and _TARGET.match(spec):
        return FactorySource(name=spec, target=spec)
    raise InvalidInputError(
        f"{str(spec)!r} is neither a file or folder, nor package.module:factory, nor a name in the catalogue"
    )


def _of_path(path: Path) -> ConfigSource:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise InvalidInputError(f"{path} holds no config.json")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InvalidInputError(
            f"{file} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{file} cannot be read: {error}") from error
    except RecursionError:
        raise InvalidInputError(f"{file} is nested too deeply for a config") from None
    if not isinstance(config, dict):
        raise InvalidInputError(f"{file} holds a {type(config).__name__}, a config is an object")
    name = file.resolve().parent.name if file.name == "config.json" else file.stem
    return _of_config(config, name)
