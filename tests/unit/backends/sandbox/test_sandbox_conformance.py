"""The published suite on `BaseSandbox`, with the tools of GNU under two shells, and with busybox's."""

from __future__ import annotations

import pytest
import sandboxes

from fusebackend.testing.conformance import BackendConformance, EditingCases


@pytest.fixture(scope="module")
def toolbox(tmp_path_factory):
    made = {}

    def tools(kind):
        if kind not in made:
            made[kind] = sandboxes.tools(kind, tmp_path_factory.mktemp("tools") / kind)
        return made[kind]

    return tools


class SandboxConformance(BackendConformance):
    big_file_bytes = (1 << 20) + 5  # far more than a command carries
    kind = ""

    @pytest.fixture
    def backend(self, toolbox, tmp_path):
        root = tmp_path / "root"
        root.mkdir()
        return sandboxes.LocalSandbox(root, toolbox(self.kind))


@pytest.mark.configuration
class TestGnu(SandboxConformance):
    kind = "gnu"


class TestBusybox(SandboxConformance):
    kind = "busybox"


@pytest.mark.configuration
class TestReplacing(EditingCases):
    replaces_existing = True

    @pytest.fixture
    def backend(self, toolbox, tmp_path):
        root = tmp_path / "root"
        root.mkdir()
        return sandboxes.LocalSandbox(root, toolbox("bash"), on_exists="replace")
