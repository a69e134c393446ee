"""`ModalBackend`: the files and the shell of a Modal sandbox (extra `modal`).

    ModalBackend(modal.Sandbox.create(app=app))

Tested against a stand-in that has the calls of modal 1.6 that are used here (`exec`, `filesystem.write_bytes`,
`filesystem.read_bytes`, `object_id`), and not against the service.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusebackend.backends.sandbox.hosted import HostedSandbox, Ran, telling

OUT_OF_TIME = -1
"""What `ContainerProcess.wait` answers when the time is over."""


class ModalBackend(HostedSandbox):
    """See the module's docstring.

    Args:
        sandbox: a `modal.Sandbox`. It is its owner's: `terminate` ends it.
        options: as for `HostedSandbox`.
    """

    def __init__(self, sandbox: Any, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sandbox = sandbox

    @property
    def id(self) -> str:
        return str(self.sandbox.object_id)

    def run(self, command: str, timeout_s: int) -> Ran:
        process = self.sandbox.exec("sh", "-c", command, timeout=timeout_s, workdir=str(self.root), text=False)
        stdout, stderr = process.stdout.read(), process.stderr.read()
        code = process.wait()
        return Ran(stdout, stderr, None if code == OUT_OF_TIME else int(code))

    def send(self, files: Sequence[tuple[str, bytes]]) -> None:
        with telling():
            for path, data in files:
                self.sandbox.filesystem.write_bytes(data, path)

    def fetch(self, path: str) -> bytes:
        with telling():
            return bytes(self.sandbox.filesystem.read_bytes(path))
