"""What an installation puts into site-packages: `autoshard` and `autoshard_models`, never a package called `models`."""

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """A copy of the tree (a build writes into its source folder), and the names in the wheel built from it."""
    tmp = tmp_path_factory.mktemp("wheel")
    source = tmp / "source"
    source.mkdir()
    for name in ("pyproject.toml", "setup.py", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    for name in ("autoshard", "models"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--no-index", "--wheel-dir", str(tmp), str(source)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    (wheel,) = tmp.glob("autoshard-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return source, set(archive.namelist())


def test_wheel_has_two_packages(built: tuple[Path, set[str]]) -> None:
    top = {name.split("/")[0] for name in built[1] if not name.split("/")[0].endswith(".dist-info")}
    assert top == {"autoshard", "autoshard_models"}


@pytest.mark.parametrize(("folder", "package"), [("autoshard", "autoshard"), ("models", "autoshard_models")])
def test_wheel_has_every_source_file(built: tuple[Path, set[str]], folder: str, package: str) -> None:
    source, names = built
    files = {
        f"{package}/{path.relative_to(source / folder).as_posix()}"
        for path in (source / folder).rglob("*")
        if path.suffix in {".py", ".yaml", ".json"} or path.name == "py.typed"
    }
    missing = files - names
    assert not missing, f"not packaged (a folder without __init__.py?): {sorted(missing)}"


def test_this_installation_has_no_package_called_models() -> None:
    for package in ("autoshard", "autoshard_models"):
        assert importlib.util.find_spec(package) is not None
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('models') is not None)"
    subprocess.run([sys.executable, "-I", "-c", code], check=True, cwd="/", stdin=subprocess.DEVNULL, timeout=60)
