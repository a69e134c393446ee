"""The image of `packaging/image/` and the pods of `packaging/kubernetes/`: each privilege that docs/containers.md names
is needed, and together they suffice. The image is built on a root of Debian, without a registry: marked `night`.

There is no cluster here: a pod's containers are started on Docker, with the users, capabilities, commands and volumes
of its YAML.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from eventually import eventually
from services import debian
from services import docker as docker_service

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "packaging/image/Containerfile"
PODS = sorted((ROOT / "packaging/kubernetes").glob("*.yaml"))
IMAGE = "fusebackend-image:test"

DEVICE = ("--device", "/dev/fuse")
MOUNTING = (*DEVICE, "--cap-add", "SYS_ADMIN")
COMMANDS = (*MOUNTING, "--security-opt", "seccomp=unconfined", "--cap-add", "NET_ADMIN")
NOTHING = (
    "--user", "1000", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--read-only", "--tmpfs", "/tmp",
)  # fmt: skip


# -- what the files say ------------------------------------------------------------------------------------------


def test_the_image_copies_what_the_engine_is_given() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    given = {line[1:] for line in ignored if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINERFILE.read_text(), re.MULTILINE)
    assert {name for names in copied for name in names.split()} == given
    assert all((ROOT / name).exists() for name in given)


def test_the_page_names_these_privileges() -> None:
    page = (ROOT / "docs/containers.md").read_text()
    for words in (MOUNTING, COMMANDS[-4:], NOTHING):
        assert f"`{' '.join(words)}`" in page


def pod_of(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    config, pod = yaml.safe_load_all(path.read_text())
    return config, pod


@pytest.mark.parametrize("path", PODS, ids=lambda path: path.stem)
def test_a_pod_fits_together(path: Path, tmp_path: Path) -> None:
    from fusebackend.config import read_file

    config, pod = pod_of(path)
    assert (config["kind"], pod["kind"]) == ("ConfigMap", "Pod")
    file = tmp_path / "agent.toml"
    file.write_text(config["data"]["agent.toml"])
    assert read_file(str(file)).mountpoint == ("/mnt/agent" if path.stem == "mount" else None)
    spec = pod["spec"]
    volumes = {volume["name"] for volume in spec["volumes"]}
    (sidecar,), (agent,) = spec["initContainers"], spec["containers"]
    for container in (sidecar, agent):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        privileged = container["securityContext"].get("privileged", False)
        for mount in container["volumeMounts"]:  # core/v1: "Bidirectional" is for privileged containers
            assert privileged or mount.get("mountPropagation") != "Bidirectional"
    assert sidecar["restartPolicy"] == "Always"
    assert not agent["securityContext"].get("privileged")
    assert (path.stem == "mount") == sidecar["securityContext"].get("privileged", False)


# -- what they do ------------------------------------------------------------------------------------------------


class Engine:
    """The command `docker` for an engine that has the image."""

    def __init__(self, url: str) -> None:
        self._environment = {**os.environ, "DOCKER_HOST": url, "DOCKER_BUILDKIT": "0"}

    def docker(self, *words: str, status: int | None = 0, limit_s: float = 120.0) -> str:
        done = subprocess.run(
            ["docker", *words], env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=limit_s, cwd=ROOT,
        )  # fmt: skip
        assert status is None or done.returncode == status, done.stdout[-4000:]
        return done.stdout

    def run(self, *words: str, status: int = 0) -> str:
        return self.docker("run", "--rm", "--network", "none", *words, status=status)

    @contextlib.contextmanager
    def container(self, *words: str) -> Iterator[str]:
        name = self.docker("run", "--detach", "--network", "none", *words).split()[-1]
        try:
            yield name
        finally:
            self.docker("rm", "--force", name)

    def inside(self, name: str, *words: str, status: int | None = 0) -> str:
        return self.docker("exec", name, *words, status=status)

    def comes(self, name: str, *words: str) -> None:
        """Wait until a command in a container succeeds."""
        done = ["docker", "exec", name, *words]
        eventually(
            lambda: subprocess.run(done, env=self._environment, capture_output=True, timeout=60).returncode == 0, 60
        )

    def doctor(self, *privileges: str, status: int = 0) -> dict[str, dict[str, str]]:
        findings = json.loads(self.run(*privileges, IMAGE, "doctor", "--json", status=status))["findings"]
        return {finding["what"]: finding for finding in findings}

    def stops_clean(self, name: str) -> None:
        self.docker("stop", "--time", "60", name)
        assert self.docker("inspect", "--format", "{{.State.ExitCode}}", name) == "0\n", self.docker("logs", name)
        assert "everything is stored" in self.docker("logs", name)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    debian.require("docker")
    reason = docker_service.missing()
    if reason is not None:
        pytest.skip(reason)
    base = tmp_path_factory.mktemp("image") / "base"
    debian.make_root(base)
    own = docker_service.DockerEngine()
    try:
        own.start()
        engine = Engine(own.url)
        archive = base.parent / "base.tar"
        debian.run(["tar", "-C", str(base), "-cf", str(archive), "."], 120)
        engine.docker("import", str(archive), "base:test")
        archive.unlink()
        build = ["build", "--network", "host", "--build-arg", "BASE=base:test", "--tag", IMAGE]
        engine.docker(*build, "--file", str(CONTAINERFILE), ".", limit_s=540)
        yield engine
    finally:
        own.remove()


@pytest.mark.night
@pytest.mark.timeout(900)
class TestContainers:
    def test_the_doctor_finds_enough_for_a_mount(self, engine: Engine) -> None:
        found = engine.doctor(*MOUNTING)
        assert {found[what]["verdict"] for what in ("/dev/fuse", "libfuse3", "fusermount3", "mount(2)")} == {"ok"}

    def test_the_doctor_names_each_privilege_that_is_taken_away(self, engine: Engine) -> None:
        device = engine.doctor("--cap-add", "SYS_ADMIN", status=1)["/dev/fuse"]
        assert device["verdict"] == "error"
        assert "--device /dev/fuse" in device["mend"]
        capability = engine.doctor(*DEVICE, status=1)["mount(2)"]
        assert capability["verdict"] == "error"
        assert "--cap-add SYS_ADMIN" in capability["mend"]
        assert engine.doctor(*COMMANDS)["bubblewrap"]["verdict"] == "ok"
        filtered = engine.doctor(*MOUNTING, "--cap-add", "NET_ADMIN")["bubblewrap"]
        assert "--security-opt seccomp=unconfined" in filtered["mend"], filtered
        without_network = engine.doctor(*COMMANDS[:-2])["bubblewrap"]
        assert "--cap-add NET_ADMIN" in without_network["mend"], without_network

    def test_a_mount_that_the_container_sees(self, engine: Engine) -> None:
        with engine.container(
            *MOUNTING, IMAGE, "mount", "/mnt", "--foreground", "--default", "sqlite:agent.db"
        ) as name:
            engine.comes(name, "fusebackend", "status", "/mnt")
            assert engine.inside(name, "sh", "-c", "echo hello > /mnt/new; sync; cat /mnt/new") == "hello\n"
            assert engine.inside(name, "fusebackend", "read", "/mnt/new").endswith("hello\n")
            said = engine.inside(name, "fusebackend", "exec", "--mount", "/mnt", "--", "id", status=None)
            assert "pivot_root" in said
            engine.stops_clean(name)

    def test_commands(self, engine: Engine) -> None:
        with engine.container(*COMMANDS, IMAGE, "mount", "/mnt", "--foreground", "--default", "memory:") as name:
            engine.comes(name, "fusebackend", "status", "/mnt")
            engine.inside(name, "sh", "-c", "echo hello > /mnt/new")
            assert engine.inside(name, "fusebackend", "exec", "--mount", "/mnt", "--", "cat", "new") == "hello\n"

    def test_without_a_privilege_it_serves(self, engine: Engine, tmp_path: Path) -> None:
        data = tmp_path / "data"
        data.mkdir()
        os.chown(data, 1000, 1000)
        served = ("serve", "--default", "sqlite:/data/agent.db", "--socket", "/data/agent.sock")
        volume = ("--volume", f"{data}:/data")
        with engine.container(*NOTHING, *volume, IMAGE, *served) as name:
            engine.comes(name, "fusebackend", "ls", "--mount", "/data/agent.sock", "/")
            asked = ("--env", "FUSEBACKEND_MOUNT=/data/agent.sock", IMAGE)
            engine.run(*NOTHING, *volume, *asked, "write", "--text", "hello", "/new.md")
            assert "hello" in engine.run(*NOTHING, *volume, *asked, "read", "/new.md")
            engine.stops_clean(name)

    @pytest.mark.parametrize("path", PODS, ids=lambda path: path.stem)
    def test_a_pod(self, engine: Engine, path: Path, tmp_path: Path) -> None:
        config, pod = pod_of(path)
        places = {volume["name"]: tmp_path / volume["name"] for volume in pod["spec"]["volumes"]}
        for place in places.values():
            place.mkdir()
            if "securityContext" in pod["spec"]:  # fsGroup
                os.chown(place, 0, pod["spec"]["securityContext"]["fsGroup"])
                place.chmod(0o2775)
        (places["config"] / "agent.toml").write_text(config["data"]["agent.toml"])
        (sidecar,), (agent,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
        groups = (
            [f"--group-add={pod['spec']['securityContext']['fsGroup']}"] if "securityContext" in pod["spec"] else []
        )
        with shared(tmp_path), engine.container(*groups, *flags(sidecar, places)) as beside:
            for probe in ("startupProbe", "readinessProbe"):
                engine.comes(beside, *sidecar[probe]["exec"]["command"])
            with engine.container(*groups, *flags(agent, places)) as name:
                if path.stem == "serve":
                    engine.comes(name, "fusebackend", "read", "/started.txt")
                    engine.stops_clean(beside)
                    return
                read = ("cat", "/workspace/agent/.fusebackend/status.json")
                engine.comes(name, *read)
                engine.docker("kill", beside)
                engine.docker("start", beside)
                engine.comes(beside, *sidecar["startupProbe"]["exec"]["command"])
                assert json.loads(engine.inside(name, *read))["mountpoint"] == "/mnt/agent"
                engine.stops_clean(beside)
                assert not os.path.ismount(places["workspace"] / "agent")


@contextlib.contextmanager
def shared(directory: Path) -> Iterator[None]:
    """Have mounts below a directory seen in other namespaces, as kubelet's are."""
    debian.run(["mount", "--bind", str(directory), str(directory)], 60)
    try:
        debian.run(["mount", "--make-rshared", str(directory)], 60)
        yield
    finally:
        debian.run(["umount", "--recursive", "--lazy", str(directory)], 60)


PROPAGATION = {"Bidirectional": "rshared", "HostToContainer": "rslave", None: "rprivate"}


def flags(container: dict[str, Any], places: dict[str, Path]) -> list[str]:
    """Docker's words for a container of a pod, up to its command."""
    context = container["securityContext"]
    # What `privileged` is needed for. Docker's own flag takes all capabilities, also those that a machine hasn't got.
    words = [*MOUNTING, "--security-opt=seccomp=unconfined"] if context.get("privileged") else []
    if "runAsUser" in context:
        words.append(f"--user={context['runAsUser']}")
    words += [f"--cap-drop={name}" for name in context.get("capabilities", {}).get("drop", ())]
    if context.get("allowPrivilegeEscalation") is False:
        words.append("--security-opt=no-new-privileges")
    if context.get("readOnlyRootFilesystem"):
        words.append("--read-only")
    words += [f"--env={variable['name']}={variable['value']}" for variable in container.get("env", ())]
    for mount in container["volumeMounts"]:
        options = [PROPAGATION[mount.get("mountPropagation")], *(["ro"] if mount.get("readOnly") else [])]
        words.append(f"--volume={places[mount['name']]}:{mount['mountPath']}:{','.join(options)}")
    program, *rest = container["command"]
    return [*words, f"--entrypoint={program}", IMAGE, *rest]
