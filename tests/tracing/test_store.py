"""What tracing found is kept on disk: asked once, read after, and never trusted beyond its type."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from autoshard.errors import InvalidInputError
from autoshard.tracing import FactorySource, ModuleSource, resolve, store, trace_source
from autoshard.tracing.config_check import check_config
from autoshard.tracing.store import is_remembered, remembered
from autoshard.tracing.trace import is_traced

SMALL = {
    "model_type": "mixtral",
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 128,
}


class _Answers:
    """Gives one number after the other: a kept answer is one that does not rise."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> int:
        self.count += 1
        return self.count


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


def _file(folder):
    (found,) = folder.rglob("*.json")
    return found


@pytest.mark.usefixtures("folder")
def test_a_question_is_answered_once():
    answers = _Answers()
    assert not is_remembered("sum", [1, 2], int)
    assert [remembered("sum", [1, 2], int, answers) for _ in range(3)] == [1, 1, 1]
    assert is_remembered("sum", [1, 2], int)
    assert remembered("sum", [2, 1], int, answers) == 2
    assert remembered("difference", [1, 2], int, answers) == 3


@pytest.mark.parametrize("content", [b"", b"not json", b'"text"', b"{}", b"\xff\xfe"])
def test_a_file_that_does_not_read_as_its_type_is_answered_anew(folder, content):
    answers = _Answers()
    remembered("sum", 1, int, answers)
    _file(folder).write_bytes(content)
    assert remembered("sum", 1, int, answers) == 2
    assert _file(folder).read_bytes() == b"2"


def test_off_keeps_nothing(folder, monkeypatch):
    monkeypatch.setenv(store.VARIABLE, "off")
    answers = _Answers()
    assert [remembered("sum", 1, int, answers) for _ in range(2)] == [1, 2]
    assert not folder.exists()


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(store.VARIABLE, str(tmp_path / "file" / "folder"))
    answers = _Answers()
    assert [remembered("sum", 1, int, answers) for _ in range(2)] == [1, 2]


def test_a_name_too_long_for_a_folder_is_no_error(monkeypatch):
    monkeypatch.setenv(store.VARIABLE, "/tmp/" + "x" * 300)
    assert remembered("sum", 1, int, _Answers()) == 1
    assert not is_remembered("sum", 1, int)


def test_what_does_not_read_is_not_remembered_and_nothing_is_left_behind(folder):
    answers = _Answers()
    remembered("sum", 1, int, answers)
    file = _file(folder)
    file.write_bytes(b"{")
    assert not is_remembered("sum", 1, int)
    file.unlink()
    file.mkdir()  # cannot be replaced by a file
    assert remembered("sum", 1, int, answers) == 2
    assert list(file.parent.iterdir()) == [file]


def test_a_large_file_is_not_read(folder, monkeypatch):
    answers = _Answers()
    remembered("sum", 1, int, answers)
    monkeypatch.setattr(store, "_MOST_BYTES", 3)
    _file(folder).write_bytes(b"   5")
    assert remembered("sum", 1, int, answers) == 2


@pytest.mark.usefixtures("folder")
def test_a_file_cannot_say_that_a_config_passed():
    config = {**SMALL, "num_attention_heads": 0}
    with pytest.raises(InvalidInputError, match="num_attention_heads"):
        check_config(config, "MixtralForCausalLM")
    check_config(SMALL, "MixtralForCausalLM")
    store._file("checked", ["MixtralForCausalLM", config]).write_bytes(b"false")
    with pytest.raises(InvalidInputError, match="num_attention_heads"):
        check_config(config, "MixtralForCausalLM")


@pytest.mark.usefixtures("folder")
def test_arguments_that_are_not_data_are_not_kept():
    answers = _Answers()
    assert [remembered("sum", object, int, answers) for _ in range(2)] == [1, 2]


@pytest.mark.usefixtures("folder")
def test_what_fails_is_not_kept():
    def fail() -> int:
        raise InvalidInputError("no")

    with pytest.raises(InvalidInputError):
        remembered("sum", 1, int, fail)
    assert remembered("sum", 1, int, lambda: 7) == 7


def test_folders_of_the_user_stay(folder):
    """``AUTOSHARD_CACHE`` may be a folder with other things in it, whatever their names' length and age."""
    others = [folder / "quarterly-report" / "thesis.txt", folder / ("a" * 16) / "notes.txt"]
    at = time.time() - 99 * 86400
    for other in others:
        other.parent.mkdir(parents=True)
        other.write_text("mine")
        os.utime(other.parent, (at, at))
    remembered("sum", 1, int, _Answers())
    assert all(other.exists() for other in others)


def test_reading_keeps_answers_young(folder):
    remembered("sum", 1, int, _Answers())
    at = time.time() - 29 * 86400
    os.utime(_file(folder).parent, (at, at))
    remembered("sum", 1, int, _Answers())
    assert time.time() - _file(folder).parent.stat().st_mtime < 86400


@pytest.mark.parametrize("told", ['{"dir_info":{"editable":true}}', '{"dir_info": {"editable": true}, "url": "x"}'])
def test_code_edited_in_place_keeps_nothing(told):
    package = SimpleNamespace(read_text=lambda _: told)
    assert store._is_edited_in_place(package)
    assert not store._is_edited_in_place(SimpleNamespace(read_text=lambda _: None))
    assert not store._is_edited_in_place(SimpleNamespace(read_text=lambda _: "[]"))


def test_other_code_asks_anew_and_old_answers_go(folder, monkeypatch):
    old, recent = folder / ("a" * 16), folder / ("b" * 16)
    for other, days in ((old, 31), (recent, 29)):
        other.mkdir(parents=True)
        at = time.time() - days * 86400
        os.utime(other, (at, at))
    answers = _Answers()
    remembered("sum", 1, int, answers)
    assert not old.exists() and recent.exists()
    monkeypatch.setattr(store, "_code_state", lambda: "c" * 16)
    assert remembered("sum", 1, int, answers) == 2


@pytest.mark.usefixtures("folder")
def test_a_trace_that_was_kept_equals_the_trace():
    source = resolve(SMALL)
    first = trace_source(source)
    assert is_traced(source) and trace_source(source) == first
    deeper = resolve({**SMALL, "num_hidden_layers": 3})
    assert not is_traced(deeper) and len(trace_source(deeper).layers) == 3
    assert not is_traced(resolve({**SMALL, "quantization_config": {"quant_method": "mxfp4"}}))


def test_code_of_users_is_never_kept():
    assert not FactorySource(name="mine", target="my_package:model").is_data
    foreign = FactorySource(name="mine", target="autoshard_models.x:f", config_target="my_package:Config")
    assert not foreign.is_data
    assert not ModuleSource(name="live", module=None).is_data
    assert FactorySource(name="ours", target="autoshard_models.x:f").is_data


@pytest.mark.usefixtures("folder")
def test_a_kept_trace_needs_no_transformers():
    trace_source(resolve(SMALL))
    code = (
        "import sys\n"
        "from autoshard.tracing import resolve, trace_source\n"
        f"graph = trace_source(resolve({SMALL!r}))\n"
        "print(graph.num_parameters, 'transformers' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert out.stdout.split() == [str(trace_source(resolve(SMALL)).num_parameters), "False"]
