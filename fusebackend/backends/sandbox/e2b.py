"""`E2BBackend`: the files and the shell of an E2B sandbox (extra `e2b`).

    E2BBackend(e2b.Sandbox.create())

Tested against a stand-in that has the calls of e2b 2.63 that are used here (`commands.run`, `files.write_files`,
`files.read`, `sandbox_id`), and not against the service.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from fusebackend.backends.sandbox.hosted import HostedSandbox, Ran, telling
from fusebackend.base.extras import needed_by


class E2BBackend(HostedSandbox):
    """See the module's docstring.

    Args:
        sandbox: an `e2b.Sandbox`. It is its owner's: `kill` ends it.
        options: as for `HostedSandbox`.
    """

    def __init__(self, sandbox: Any, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sandbox = sandbox

    @property
    def id(self) -> str:
        return str(self.sandbox.sandbox_id)

    def run(self, command: str, timeout_s: int) -> Ran:
        with needed_by("E2BBackend"):
            e2b = importlib.import_module("e2b")
        try:
            result = self.sandbox.commands.run(command, cwd=str(self.root), timeout=timeout_s)
        except e2b.CommandExitException as error:  # the SDK's way to tell of a code that is not 0
            result = error
        except e2b.TimeoutException:
            return Ran(b"", b"", None)
        return Ran(_bytes(result.stdout), _bytes(result.stderr), int(result.exit_code))

    def send(self, files: Sequence[tuple[str, bytes]]) -> None:
        with telling():
            self.sandbox.files.write_files([{"path": path, "data": data} for path, data in files])

    def fetch(self, path: str) -> bytes:
        with telling():
            return bytes(self.sandbox.files.read(path, format="bytes"))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")
