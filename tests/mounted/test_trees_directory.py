"""The trees directory of a mount, `/.fusebackend`: its files, its name, and the processes and agents that see it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import mounts
import pytest
from mounts import Mounted, Serve
from programs import command, sh

import fusebackend
from fusebackend.backends import InMemoryBackend, SqliteBackend
from fusebackend.linux import mount_table as table

pytestmark = pytest.mark.mounted

OWN = ".fusebackend"


def status_of(mounted: Mounted, name: str = OWN) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((mounted.path / name / "status.json").read_bytes())
    return found


@pytest.fixture(params=["hidden", "visible"])
def shown(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def mounted(serve: Serve, shown: str) -> Mounted:
    return serve("memory:", routes={"/memories": "memory:"}, options=[f"trees={shown}"])


# -- its files -------------------------------------------------------------------------------------------------------


def test_status_is_what_the_attribute_and_the_command_say(mounted: Mounted) -> None:
    own = mounted.path / OWN
    told = status_of(mounted)
    attribute = json.loads(os.getxattr(mounted.path, "user.fusebackend.status"))
    (printed,) = json.loads(command("status", "--json", mounted.path).stdout)
    assert told.keys() == attribute.keys() == printed.keys() - {"state"}
    moving = {"counters", "known_inodes", "open_files", "control"}
    for name in told.keys() - moving:
        assert told[name] == attribute[name] == printed[name], name
    assert told["mountpoint"] == str(mounted.path) and told["pid"] == mounted.pid and told["trees"] == f"/{OWN}"
    assert [route["prefix"] for route in told["routes"]] == ["/", "/memories/"]
    assert (own / "version").read_text() == f"{fusebackend.__version__}\n"
    text = (own / "status.json").read_text()
    assert text.startswith('{\n  "mountpoint": ') and text.endswith("}\n")


def test_tools_get_all_of_it(mounted: Mounted, tmp_path: Path) -> None:
    if not shutil.which("jq"):
        pytest.skip("jq is not installed")
    own = mounted.path / OWN
    assert sh("jq -r .mountpoint status.json", own) == f"{mounted.path}\n"
    assert sh("cat status.json | jq -r .pid", own) == f"{mounted.pid}\n"
    for script in (
        "cp status.json {copy}",
        "cp -a status.json {copy}",
        "dd if=status.json of={copy} bs=7 status=none",
        "dd if=status.json of={copy} bs=1M iflag=direct status=none",
        "tail -c +1 status.json > {copy}",
        "tail -n 1000 status.json > {copy}",
        "tac status.json | tac > {copy}",
        "(head -c 10; cat) < status.json > {copy}",
        "tar c status.json | tar xO > {copy}",
        "rsync status.json {copy} 2>/dev/null || cp status.json {copy}",
    ):
        copy = tmp_path / "copy.json"
        copy.unlink(missing_ok=True)
        sh(script.format(copy=copy), own)
        assert json.loads(copy.read_bytes())["pid"] == mounted.pid, script
    with (own / "status.json").open("rb") as file:
        assert os.fstat(file.fileno()).st_size == len(file.read()) == file.seek(0, os.SEEK_END)


# -- its name --------------------------------------------------------------------------------------------------------


def test_listings_of_the_root(mounted: Mounted, shown: str, tmp_path: Path) -> None:
    (mounted.path / "d").mkdir()
    (mounted.path / "d/file").write_text("x\n")
    names = {"d", "memories"} | ({OWN} if shown == "visible" else set())
    assert set(os.listdir(mounted.path)) == set(os.listdir(mounted.path)) == names
    found = set(sh("find . -mindepth 1", mounted.path).split())
    below = {f"./{OWN}", f"./{OWN}/status.json", f"./{OWN}/version"} if shown == "visible" else set()
    assert found == {"./d", "./d/file", "./memories"} | below, "and no private tree, where all is found again"
    sh(f"cp -a {mounted.path} {tmp_path}/copy", tmp_path)
    assert (tmp_path / "copy/d/file").read_text() == "x\n"
    assert (tmp_path / "copy" / OWN).exists() == (shown == "visible")
    assert os.statvfs(mounted.path / OWN).f_fsid == os.statvfs(mounted.path).f_fsid
    assert str(mounted.path) in sh(f"df {OWN}", mounted.path)
    git = "git -c user.name=x -c user.email=x@x -c safe.directory='*'"
    sh(f"{git} init -q; {git} add d; {git} commit -qm one", mounted.path)
    untracked = sh(f"{git} status --porcelain", mounted.path)
    assert untracked == (f"?? {OWN}/\n" if shown == "visible" else "")


def test_in_a_configuration_file(tmp_path: Path) -> None:
    mounts.require()
    point, file = tmp_path / "point", tmp_path / "agent.toml"
    point.mkdir()
    text = f'mountpoint = "{point}"\ndefault = "memory:"\ntrees = "visible"\ntrees_name = ".mount"\n'
    for words, names in (([], [".mount"]), (["-o", "trees=hidden"], []), (["-o", "trees_name=.x"], [".x"])):
        file.write_text(text)
        assert command("mount", "--config", file, *words).stderr == ""
        assert os.listdir(point) == names
        assert command("umount", point).returncode == 0
    file.write_text(text.replace("visible", "no"))
    done = command("mount", "--config", file)
    assert done.stderr == f"Error: '{file}': trees = 'no': give one of hidden, visible, off\n"


@pytest.mark.parametrize("kind", ["dir", "sqlite"])
def test_a_volume_that_has_the_name_is_refused(serve: Serve, tmp_path: Path, kind: str) -> None:
    url = f"{kind}:{tmp_path}/volume"
    if kind == "dir":
        (tmp_path / "volume" / OWN).mkdir(parents=True)
    else:
        with SqliteBackend(tmp_path / "volume") as backend:
            backend.write(f"/{OWN}/file", "x")
    point = tmp_path / "point"
    point.mkdir()
    for words in ([], ["--foreground"]):
        done = command("mount", point, "--default", url, *words)
        assert done.returncode == 1
        *_, line = done.stderr.splitlines()
        assert line == (
            f"Error: {url} has a file '/{OWN}', which is the mount's own directory: rename that one, which a mount "
            "with '-o trees=off' shows, or mount with '-o trees_name=NAME'"
        )
        assert "Traceback" not in done.stderr and table.mount_at(str(point)) is None
    mounted = serve(url, options=["trees_name=.other"])
    assert status_of(mounted, ".other")["trees"] == "/.other"
    mounted.stop()
    mounted = serve(url, options=["trees=off"])
    (mounted.path / OWN).rename(mounted.path / "renamed")
    mounted.stop()
    assert status_of(serve(url))["trees"] == f"/{OWN}"


def test_a_backend_of_this_process_that_has_the_name_is_refused(tmp_path: Path) -> None:
    mounts.require()
    backend = InMemoryBackend()
    backend.write(f"/{OWN}", "x")
    with pytest.raises(fusebackend.MountError, match=f"^InMemoryBackend has a file '/{OWN}', which is the mount's"):
        fusebackend.mount(backend, tmp_path)
    for options in ({"trees": "off"}, {"trees_name": "other"}, {"options": ["trees=off"]}):
        with fusebackend.mount(backend, tmp_path, **options) as files:
            assert files.read(f"/{OWN}").error is None
    for options in ({"trees": "no"}, {"trees_name": "a/b"}, {"options": ["trees=no"]}):
        with pytest.raises(ValueError, match=r"^trees(_name)?='.*'.*[:;] give one"):
            fusebackend.mount(backend, tmp_path, **options)
    assert table.mount_at(str(tmp_path)) is None


def test_a_default_that_runs_commands_is_asked_when_it_has_started(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "root" / OWN).mkdir(parents=True)
    point = tmp_path / "point"
    point.mkdir()
    url = f"python:guests:hosted?directory={tmp_path}"
    done = command("mount", point, "--default", url)
    assert done.returncode == 1 and done.stderr.startswith(f"Error: {url} has a file '/{OWN}', which is"), done.stderr
    assert table.mount_at(str(point)) is None
    (tmp_path / "root" / OWN).rmdir()
    shutil.rmtree(tmp_path / "tools")
    assert status_of(serve(url))["trees"] == f"/{OWN}"


def test_a_route_that_has_the_name_is_refused(serve: Serve, tmp_path: Path) -> None:
    done = command("mount", tmp_path, "--default", "memory:", "--route", f"/{OWN}/x=memory:")
    assert done.returncode == 1
    assert done.stderr == (
        f"Error: route '/{OWN}/x/' begins with '/{OWN}', which is the mount's own directory: attach it elsewhere, or "
        "mount with '-o trees_name=NAME'\n"
    )
    mounted = serve("memory:", routes={f"/{OWN}/x": "memory:"}, options=["trees=off"])
    (mounted.path / OWN / "x/file").write_text("x")
    assert os.listdir(mounted.path / OWN) == ["x"]


def test_a_mount_of_a_mount_is_not_refused(serve: Serve, shown: str) -> None:
    below = serve("memory:", options=[f"trees={shown}"])
    (below.path / "file").write_text("x")
    above = serve(f"dir:{below.path}")
    assert (above.path / "file").read_text() == "x"
    assert status_of(above)["pid"] == above.pid and status_of(below)["pid"] == below.pid
    above.stop()


# -- who sees it -----------------------------------------------------------------------------------------------------


def test_other_users_read_what_the_attribute_says(serve: Serve) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be another user")
    server = serve("memory:", options=["allow_other"])
    script = (
        f"cat {OWN}/status.json >/dev/null && ls {OWN} && ! ls {OWN}/private 2>/dev/null && ! ls {OWN}/log 2>/dev/null"
        f" && ! cd {OWN}/private/sandbox 2>/dev/null && ! touch {OWN}/x 2>/dev/null && echo read"
    )
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]
    done = subprocess.run(words, cwd=server.path, capture_output=True, text=True, check=False)
    assert done.stdout == "branches\nlog\nsnapshots\nstatus.json\nversion\nread\n", done.stderr


def test_agents_reach_it_by_name(mounted: Mounted, shown: str, tmp_path: Path) -> None:
    (mounted.path / "file").write_text("mountpoint")
    with fusebackend.connect(mounted.path) as client:
        listed = [entry["path"] for entry in client.ls("/").entries or ()]
        assert listed == ([f"/{OWN}/"] if shown == "visible" else []) + ["/file", "/memories/"]
        own = [entry["path"] for entry in client.ls(f"/{OWN}").entries or ()]
        assert own == [f"/{OWN}/log/", f"/{OWN}/snapshots/", f"/{OWN}/status.json", f"/{OWN}/version"]
        assert str(client.read(f"/{OWN}/version")).split()[-1] == fusebackend.__version__
        data = client.read(f"/{OWN}/status.json").file_data
        assert data is not None
        everywhere = [match["path"] for match in client.grep('"mountpoint"').matches or ()]
        assert everywhere == ([f"/{OWN}/status.json"] if shown == "visible" else [])
        assert [match["path"] for match in client.grep("mountpoint", f"/{OWN}").matches or ()] == [
            f"/{OWN}/status.json"
        ]
        for found in (client.glob("*.json", f"/{OWN}"), client.glob(f"/{OWN}/*.json")):
            assert [match["path"] for match in found.matches or ()] == [f"/{OWN}/status.json"]
        mixed = client.download_files(["/file", f"/{OWN}/version", f"/{OWN}/none"])
        assert [one.content for one in mixed] == [b"mountpoint", f"{fusebackend.__version__}\n".encode(), None]
        told = client.stat(f"/{OWN}/status.json")
        assert (told.type, told.mode, told.route) == ("file", 0o444, f"/{OWN}/")
        assert client.stat(f"/{OWN}").type == "directory"
        for record in (
            client.write(f"/{OWN}/new", "x"),
            client.write(f"/{OWN}", "x"),
            client.edit(f"/{OWN}/version", "0", "1"),
            client.delete(f"/{OWN}/version"),
            client.delete(f"/{OWN}"),
            client.move("/file", f"/{OWN}/file"),
            client.move(f"/{OWN}/version", "/version"),
            client.move(f"/{OWN}", "/other"),
            *client.upload_files([(f"/{OWN}/new", b"x"), (f"/{OWN}", b"x")]),
        ):
            assert record.error is not None, record
            assert "\n" not in record.error
        assert client.read("/file").error is None
        names = sorted(entry["path"] for entry in client.ls("/memories").entries or ())
        assert names == []
    assert json.loads(command("read", mounted.path / OWN / "status.json").stdout)["pid"] == mounted.pid
    assert command("ls", mounted.path / OWN).stdout.split() == ["log/", "snapshots/", "status.json", "version"]
    assert set(os.listdir(mounted.path)) - {OWN} == {"file", "memories"}
