"""Plan files are data: nothing in them is run, and what they derive is checked."""

import pytest

from autoshard.errors import InvalidInputError
from autoshard.tracing import source_from_dict


@pytest.mark.parametrize(
    "source",
    [
        {"kind": "factory", "name": "x", "target": "os:system", "kwargs": {"command": "touch /tmp/autoshard-was-run"}},
        {
            "kind": "factory",
            "name": "x",
            "target": "autoshard_models.gpt_moe:build",
            "kwargs": {},
            "config_target": "subprocess:Popen",
        },
    ],
)
def test_code_named_by_a_file_is_refused(source: dict) -> None:
    with pytest.raises(InvalidInputError, match="files are data and run no code"):
        source_from_dict(source)
    assert source_from_dict(source, trusted=True).name == "x", "what the user says himself is taken, and not yet run"


def test_models_that_ship_may_be_named() -> None:
    source = {"kind": "factory", "name": "g", "target": "autoshard_models.gpt_moe:build", "kwargs": {}}
    assert source_from_dict(source).to_dict() == source
