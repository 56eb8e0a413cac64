import gzip
from pathlib import Path

import numpy as np
import pytest

from autoshard.calibrate import read_table
from autoshard.calibrate.tables import one_in
from autoshard.errors import InvalidInputError


def write(folder: Path, text: str, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_reads_columns(tmp_path: Path, name: str) -> None:
    table = read_table(write(tmp_path, "a,b\n1,x\n2.5,y\n", name), ["a", "b"])
    assert len(table) == 2 and table.text("b") == ("x", "y")
    assert table.numbers("a").tolist() == [1.0, 2.5]
    assert table.take(np.array([False, True])).numbers("a").tolist() == [2.5]
    assert table.numbers("absent", 7.0).tolist() == [7.0, 7.0]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is empty"),
        ("a,b\n", "has no rows"),
        ("a,c\n1,2\n", "lacks column 'b'"),
        ("a,b\n1\n", "row 2: 1 cells under 2 columns"),
    ],
)
def test_wrong_tables_give_one_line(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(InvalidInputError, match=part) as error:
        read_table(write(tmp_path, text), ["a", "b"])
    assert "\n" not in str(error.value)


def test_wrong_cells_name_their_row(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "a,b\n1,0\nfast,2\n"))
    with pytest.raises(InvalidInputError, match="row 3: a is no number: 'fast'"):
        table.numbers("a")
    with pytest.raises(InvalidInputError, match="row 2: b must be positive"):
        table.positive("b")


def test_missing_file_and_broken_gzip(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot read table"):
        read_table(tmp_path / "none.csv")
    broken = tmp_path / "broken.csv.gz"
    broken.write_bytes(b"\x1f\x8bxx")
    with pytest.raises(InvalidInputError, match="cannot read table"):
        read_table(broken)


def test_the_split_is_by_group_and_stable(tmp_path: Path) -> None:
    rows = "".join(f"{i % 50},{i}\n" for i in range(500))
    table = read_table(write(tmp_path, "g,x\n" + rows))
    out = one_in(table, ["g"], 4)
    groups = table.numbers("g")
    assert all(len(set(out[groups == g])) == 1 for g in set(groups))
    assert 0.1 < out.mean() < 0.45
    assert (out == one_in(table, ["g"], 4)).all()
