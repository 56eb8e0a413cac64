"""Parses a command with an engine's own parser, on a machine without a GPU: ``engine_parsers.py ENGINE PACKAGE ARGV``.

PACKAGE is the folder of an unpacked wheel (``vllm-0.12.0``, ``sglang-0.5.23``), ARGV a JSON file with the arguments
after ``vllm`` or ``python -m sglang.launch_server``. What the engine imports and is not installed (kernels, servers)
is replaced by mocks, as vLLM does to document its own arguments (its ``docs/mkdocs/hooks/generate_argparse.py``);
parser, dataclass of arguments and reader of config files are the engine's. Prints the parsed values as JSON.
"""

import argparse
import importlib.abc
import importlib.machinery
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
import torch._dynamo  # before anything is mocked
import transformers

_ENGINES = ("vllm", "sglang")
_ABSENT = {
    "vllm": {"libtpu", "torch_xla", "tpu_inference", "amdsmi", "triton", "flashinfer", "flash_attn"},
    "sglang": {},
}


class _Anything(MagicMock):
    """Something that is imported and never used: also as a base class, and as a type of a pydantic field."""

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (object,)

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()


class _Module(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name=name)


class _Mocks(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives modules that the engine's code imports and that are not there; to nobody else."""

    def __init__(self, absent: set[str]) -> None:
        self.absent = absent
        self.given: set[str] = set()

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:  # noqa: ARG002
        top = name.partition(".")[0]
        if top not in self.given:
            frame = sys._getframe(1)
            while frame.f_back is not None and "importlib" in frame.f_code.co_filename:
                frame = frame.f_back
            asked_by = str(frame.f_globals.get("__name__", ""))
            if not asked_by.startswith(_ENGINES) or top in self.absent:
                return None
            if top in _ENGINES and not name.endswith(("_C", "_moe_C")):
                return None
            self.given.add(top)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        return _Module(spec.name)

    def exec_module(self, module: Any) -> None:
        pass


def parse_vllm(argv: list[str]) -> dict[str, Any]:
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm")
    make_arg_parser(parser.add_subparsers(dest="subparser").add_parser("serve"))
    return vars(parser.parse_args(argv))


def parse_sglang(argv: list[str]) -> dict[str, Any]:
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger

    parser = argparse.ArgumentParser(prog="sglang")
    ServerArgs.add_cli_args(parser)
    return vars(parser.parse_args(ConfigArgumentMerger(parser).merge_config_with_args(argv)))


def main(engine: str, package: Path, argv: list[str]) -> None:
    assert torch and transformers
    sys.path.insert(0, str(package))
    sys.meta_path.append(_Mocks(set(_ABSENT[engine])))
    parse: Callable[[list[str]], dict[str, Any]] = {"vllm": parse_vllm, "sglang": parse_sglang}[engine]
    print(json.dumps(parse(argv), default=str))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text()))
