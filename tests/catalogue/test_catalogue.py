"""Looking up models by name."""

import pytest

from autoshard import catalogue
from autoshard.errors import InvalidInputError


def test_every_entry_has_a_source_of_its_name() -> None:
    names = [entry.name for entry in catalogue.entries()]
    assert len(set(names)) == len(names) >= 8
    assert [catalogue.find(name).name for name in names] == names


@pytest.mark.parametrize(
    ("name", "near"),
    [("mixtral-8x7", "mixtral-8x7b"), ("Qwen3-235B-A22B", "qwen3-235b-a22b"), ("gpt-moe-1.6", "gpt-moe-1.6t")],
)
def test_an_unknown_name_suggests_the_nearest(name: str, near: str) -> None:
    assert catalogue.nearest(name) == near
    with pytest.raises(InvalidInputError, match=f"did you mean {near}"):
        catalogue.find(name)


def test_a_name_like_no_other_lists_all() -> None:
    assert catalogue.nearest("zzz") is None
    with pytest.raises(InvalidInputError, match="known are mixtral-8x7b, "):
        catalogue.find("zzz")
