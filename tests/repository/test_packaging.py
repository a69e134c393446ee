"""What is delivered: the import, the command, the scripts and the pinned versions."""

import os
import re
import resource
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from itertools import chain
from pathlib import Path

import pytest
from for_each import for_each

import fusebackend

ROOT = Path(__file__).parents[2]
FILES = [ROOT / ".ci/run", *sorted((ROOT / "scripts").iterdir())]
SCRIPTS = [path for path in FILES if path.is_file() and not path.suffix]
HEAVY = ("pyfuse3", "trio", "anyio", "rich", "wcmatch", "msgspec", "click", "asyncio", "sqlite3")


def python(code: str) -> str:
    return run(sys.executable, "-c", code)


def run(*words: object) -> str:
    command = [str(word) for word in words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT).stdout


class TestImport:
    def test_it_loads_nothing_heavy(self) -> None:
        loaded = python("import sys, fusebackend; print(*sys.modules)").split()
        assert not set(HEAVY) & set(loaded)

    def test_nor_do_the_names_of_the_backends(self) -> None:
        loaded = python("import sys, fusebackend.backends, fusebackend.protocol; print(*sys.modules)").split()
        assert not set(HEAVY) & set(loaded)

    @pytest.mark.alone
    def test_it_takes_less_than_150_ms(self) -> None:
        def seconds(code: str) -> float:
            """Of the processor: others may be busy on it."""
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            python(code)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

        assert min(seconds("import fusebackend") for _ in range(7)) < 0.5, "0.1 s is usual"

    @for_each("name", fusebackend.__all__)
    def test_every_public_name_is_there(self, name: str) -> None:
        assert getattr(fusebackend, name).__name__.rpartition(".")[2] == name
        assert name in dir(fusebackend)

    def test_a_name_that_is_not_there(self) -> None:
        with pytest.raises(AttributeError, match="module 'fusebackend' has no attribute 'nothing'"):
            fusebackend.nothing  # noqa: B018

    def test_a_checkout_of_this_name_beside_a_script_does_not_shadow_it(self, tmp_path: Path) -> None:
        (tmp_path / "fusebackend").mkdir()  # a directory without __init__.py, as a checkout has none
        (tmp_path / "script.py").write_text("import fusebackend; print(fusebackend.__version__)")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [sys.executable, "script.py"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert done.stdout == f"{fusebackend.__version__}\n", done.stderr

    @pytest.mark.parametrize("first", ["fusebackend", "fusebackend.linux.mount_table", "fusebackend.server.api"])
    def test_mount_can_be_called_whatever_was_imported_first(self, first: str) -> None:
        code = f"import {first}, fusebackend; print(callable(fusebackend.mount))"
        assert python(code) == "True\n"
        assert python(f"import {first}\nfrom fusebackend import mount\nprint(callable(mount))") == "True\n"


class TestCommand:
    @pytest.mark.parametrize("module", ["fusebackend", "fusebackend.cli.main"])
    def test_it_says_its_version(self, module: str) -> None:
        assert run(sys.executable, "-m", module, "--version") == f"fusebackend {fusebackend.__version__}\n"

    def test_the_changelog_knows_this_version(self) -> None:
        assert f"## {fusebackend.__version__}" in (ROOT / "CHANGELOG.md").read_text()


class TestVersions:
    def pinned(self) -> dict[str, str]:
        lines = (ROOT / "constraints.txt").read_text().splitlines()
        return dict(line.lower().replace("_", "-").split("==") for line in lines if line and not line.startswith("#"))

    def test_every_dependency_is_pinned_by_name_alone(self) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
        wanted = [each for each in wanted if not each.startswith("fusebackend[")]  # dev is all of them
        assert {re.split(r"[^A-Za-z0-9_-]", each)[0].lower() for each in wanted} <= set(self.pinned())

    def test_so_is_what_the_dependencies_depend_on(self) -> None:
        pinned = self.pinned()
        for name in ("trio", "rich", "pytest", "mypy"):
            for requirement in requires(name) or []:
                what, _, condition = requirement.partition(";")
                if not condition:
                    assert re.split(r"[^A-Za-z0-9_-]", what)[0].lower().replace("_", "-") in pinned


class TestScripts:
    @for_each("script", SCRIPTS, ids=lambda path: path.name)
    def test_it_can_be_run(self, script: Path) -> None:
        assert os.access(script, os.X_OK)
        shell = {"#!/usr/bin/env bash": "bash", "#!/bin/sh": "sh"}[script.read_text().splitlines()[0]]
        run(shell, "-n", script)

    @for_each("target", ["mount", "demo", "test", "check", "bench", "umount", "clean"])
    def test_make_would_run_scripts_that_are_there(self, target: str) -> None:
        scripts = re.findall(r"scripts/\w+", run("make", "-n", target))
        assert scripts
        assert all((ROOT / script).exists() for script in scripts)

    def test_bootstrap_refuses_an_old_python(self, tmp_path) -> None:
        old = tmp_path / "python-old"
        old.write_text(
            '#!/bin/sh\ncase "$*" in *version_info*) exit 1 ;; -V) echo Python 3.9.2 ;; *) echo /opt/old ;; esac\n'
        )
        old.chmod(0o755)
        scripts = tmp_path / "clone/scripts"
        scripts.mkdir(parents=True)
        (scripts / "bootstrap").write_text((ROOT / "scripts/bootstrap").read_text())
        (scripts / "bootstrap").chmod(0o755)
        done = subprocess.run(
            [scripts / "bootstrap"], env={**os.environ, "PYTHON": str(old)}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 1
        assert "is Python 3.9.2; fusebackend needs Python 3.11 or newer" in done.stderr
        assert not (tmp_path / "clone/.venv").exists()


class TestFiles:
    @pytest.mark.parametrize("name", ["SEMANTICS.md", "py.typed"])
    def test_data_of_the_package(self, name: str) -> None:
        assert (ROOT / "fusebackend" / name).exists()


def test_the_fresh_root_runs_the_documented_commands() -> None:
    script = (ROOT / "packaging/debian-root").read_text()
    run("bash", "-n", ROOT / "packaging/debian-root")
    wheel = "$(echo /wheel/*.whl)"
    steps = [step.replace(wheel, "fusebackend-*.whl") for step in re.findall(r'^step "(.*)"$', script, re.MULTILINE)]
    pages = [re.sub(r" \\\n +", " ", (ROOT / page).read_text()) for page in ("README.md", "docs/install.md")]
    assert len(steps) == 6
    for step in steps:
        assert any(step.removeprefix("env -i /bin/") in page for page in pages), step
    for link in re.findall(r"^ln -s /opt/.*$", script, re.MULTILINE):
        assert link in pages[1]
