"""What Prometheus can know of a real mount: the endpoint, `fusebackend metrics`, and nothing at all while it is off."""

from __future__ import annotations

import errno
import json
import os
import socket
import urllib.request
from pathlib import Path

import pytest
from eventually import eventually
from mounts import Mounted, Serve
from programs import command, ok
from prometheus_client.parser import text_string_to_metric_families

import fusebackend

ROOT = Path(__file__).parents[2]
LIMIT_S = 60
MEASURED = "[metrics]\nlisten = '127.0.0.1:0'\n"

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found.get((f"fusebackend_{name}", frozenset(labels.items())), 0)


def scraped(mounted: Mounted) -> str:
    status = json.loads((mounted.path / ".fusebackend/status.json").read_text())
    with urllib.request.urlopen(status["metrics"], timeout=LIMIT_S) as answer:
        text: str = answer.read().decode()
        return text


@pytest.fixture
def measured(serve: Serve, tmp_path: Path) -> Mounted:
    config = tmp_path / "agent.toml"
    (tmp_path / "ro").mkdir()
    config.write_text(
        f"{MEASURED}[routes]\n'/ro/' = {{ url = 'dir:{tmp_path}/ro', read_only = true }}\n"
        "[views.reader]\nrules = [{ operations = ['read', 'write'], paths = ['/secret'], mode = 'hide' }]\n"
    )
    return serve(f"sqlite:{tmp_path}/files.db", routes={"/notes": "memory:"}, config=config)


def test_a_scrape_of_a_mount(measured: Mounted) -> None:
    (measured.path / "notes/plan").write_bytes(b"x" * 5000)
    assert (measured.path / "notes/plan").read_bytes() == b"x" * 5000
    with pytest.raises(OSError) as refused:
        (measured.path / "ro/file").write_text("no")
    with fusebackend.connect(measured.path) as files:
        assert files.ls("/notes/").error is None
        assert files.read("/absent").error is not None
        with fusebackend.connect(measured.path, view="reader") as viewed:
            assert viewed.read("/secret").error is not None
        files.snapshots()
        found = samples(scraped(measured))

    def requests(face: str, operation: str, route: str) -> float:
        return value(found, "request_seconds_count", face=face, operation=operation, route=route)

    assert requests("kernel", "create", "/notes/") == 1
    assert requests("kernel", "write", "/notes/") >= 1
    assert requests("kernel", "create", "/") == 0
    assert value(found, "kernel_bytes_total", direction="written", route="/notes/") == 5000
    assert value(found, "kernel_bytes_total", direction="written", route="/") == 0
    assert value(found, "kernel_opens_total", page_cache="hit", route="/notes/") == 1
    assert requests("kernel", "read", "/.fusebackend/") >= 1, "status.json was read"
    name = errno.errorcode[refused.value.errno or 0]
    assert value(found, "request_errors_total", face="kernel", operation="create", route="/ro/", error=name) == 1
    assert requests("socket", "ls", "/notes/") == 1
    assert requests("socket", "read", "/") == 2
    assert value(found, "request_errors_total", face="socket", operation="read", route="/", error="failed") == 2
    assert requests("socket", "snapshots", "") == 1
    assert 0 < value(found, "request_seconds_sum", face="kernel", operation="create", route="/notes/") < LIMIT_S
    one = {"face": "kernel", "operation": "create", "route": "/notes/"}
    assert value(found, "request_seconds_bucket", **one, le="+Inf") == 1


def test_lookups_in_the_cache_of_a_volume(serve: Serve, tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text("[metrics]\n")
    url = f"sqlite:{tmp_path}/files.db"
    before = serve(url, config=config)
    (before.path / "file").write_bytes(b"x" * 5000)
    before.stop()
    mounted = serve(url, config=config)
    with fusebackend.connect(mounted.path) as files:
        counts = []
        for _ in range(2):
            assert files.download_files(["/file"])[0].content == b"x" * 5000
            found = samples(files.metrics())
            counts.append([value(found, "cache_lookups_total", result=each, route="/") for each in ("hit", "miss")])
    assert counts[0][1] >= 1, "the file was in the database alone"
    assert counts[1][0] > counts[0][0]
    assert counts[1][1] == counts[0][1]


def test_how_late_a_change_by_another_host_is_told_of(postgres_dsn: str, serve: Serve, tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text("[metrics]\n")
    url = f"postgres:{postgres_dsn}?volume=files"
    here, there = serve(url, config=config), serve(url)

    def delays() -> tuple[float, float]:
        with fusebackend.connect(here.path) as files:
            found = samples(files.metrics())
        return value(found, "feed_delay_seconds_count", route="/"), value(found, "feed_delay_seconds_sum", route="/")

    (here.path / "own").write_text("x")
    os.sync()
    own = delays()[0]
    (there.path / "file").write_text("x")
    assert (there.path / "file").read_text() == "x"
    eventually(lambda: delays()[0] > own, LIMIT_S)
    count, seconds = delays()
    assert 0 < seconds < LIMIT_S * count


def test_what_is_counted_is_printed_of_any_mount(serve: Serve) -> None:
    mounted = serve("memory:")
    (mounted.path / "file").write_text("text")
    found = samples(ok("metrics", mounted.path))
    assert value(found, "kernel_requests_total", operation="create") == 1
    assert value(found, "mount_info", mountpoint=str(mounted.path), version=fusebackend.__version__) == 1
    assert value(found, "route_state", route="/", state="healthy") == 1
    assert value(found, "control_connections") == 1
    assert ("fusebackend_control_refused_total", frozenset()) in found
    assert not any(name.startswith("fusebackend_request_seconds") for name, _ in found)


def test_an_address_in_use_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    (tmp_path / "mnt").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config.write_text(f"[metrics]\nlisten = '127.0.0.1:{port}'\n")
        done = command("mount", tmp_path / "mnt", "--default", "memory:", "--config", config)
    assert done.returncode == 1
    assert done.stderr == f"Error: the metrics can't listen on 127.0.0.1:{port}: Address already in use\n"
    assert not os.path.ismount(tmp_path / "mnt")


def test_without_the_package_it_is_one_line(serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "without/prometheus_client").mkdir(parents=True)
    missing = "raise ModuleNotFoundError('No module', name='prometheus_client')"
    (tmp_path / "without/prometheus_client/__init__.py").write_text(missing)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "without"))
    mounted = serve("memory:")
    done = command("metrics", mounted.path)
    assert done.returncode == 1
    assert done.stderr == (
        "Error: metrics needs prometheus_client, which is not installed: pip install 'fusebackend[metrics]'\n"
    )
