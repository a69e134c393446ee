"""The sdist and the wheel, built as for a release: what is in them, and what runs of it."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import fusebackend

ROOT = Path(__file__).parents[2]
NAME = f"fusebackend-{fusebackend.__version__}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of both, made of the files that git has or would add."""
    pytest.importorskip("build", reason="needs the package 'build'")
    clone, dist = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    for name in names.split("\0"):
        if name and (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).write_bytes((ROOT / name).read_bytes())
    # One environment for both: `build` makes two otherwise, and asks the index of packages twice.
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    tools = tmp_path_factory.mktemp("tools")
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(tools), *wanted)
    words = ["--no-isolation", "--skip-dependency-check", "--outdir", str(dist), str(clone)]
    run(sys.executable, "-m", "build", *words, env={**os.environ, "PYTHONPATH": str(tools)})
    return dist


def run(*command: str, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def sources(directory: Path) -> set[str]:
    """The files of the package in a checkout."""
    found = (path.relative_to(directory) for path in (directory / "fusebackend").rglob("*") if path.is_file())
    return {str(path) for path in found if "__pycache__" not in path.parts}


def test_the_wheel_has_the_package_and_nothing_else(built: Path) -> None:
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
        meta = Parser().parsestr(wheel.read(f"{NAME}.dist-info/METADATA").decode())
        scripts = wheel.read(f"{NAME}.dist-info/entry_points.txt").decode()
    package = {name for name in names if name.startswith("fusebackend/")}
    assert package == sources(ROOT)
    assert all(name.startswith(f"{NAME}.dist-info/") for name in names - package)
    assert f"{NAME}.dist-info/licenses/LICENSE" in names
    assert (meta["Version"], meta["Requires-Python"]) == (fusebackend.__version__, ">=3.11")
    assert meta["Description-Content-Type"] == "text/markdown" and "# fusebackend" in meta.get_payload()
    for script in ("fusebackend", "mount.fusebackend", "umount.fusebackend"):
        assert f"\n{script} = " in scripts


def test_the_sdist_has_what_builds_and_tests_it(built: Path) -> None:
    with tarfile.open(built / f"{NAME}.tar.gz") as archive:
        names = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}
    assert sources(ROOT) <= names
    meta = {"PKG-INFO", "pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "constraints.txt", "Makefile"}
    others = {"scripts/bootstrap", "tests/conftest.py", "docs/install.md", "examples/demo.py", "packaging/RELEASE.md"}
    assert meta | others <= names
    assert not [name for name in names if {".venv", "__pycache__", ".git", "build"} & set(Path(name).parts)]


def test_the_wheel_runs_from_itself(built: Path) -> None:
    """Without the checkout on the path: nothing of it is missing."""
    wheel = built / f"{NAME}-py3-none-any.whl"
    code = "import fusebackend.cli.main, sys; print(fusebackend.__file__); fusebackend.cli.main.main(['--version'])"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(wheel)!r}); {code}"]
    done = subprocess.run(command, cwd=built, capture_output=True, text=True, timeout=60)
    where, version = done.stdout.splitlines()
    assert where.startswith(str(wheel)) and version == f"fusebackend {fusebackend.__version__}", done.stderr
