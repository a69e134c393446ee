"""What every backend with a shell says of a command: its output, its exit code, its limits."""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from fusebackend.protocol import SandboxBackendProtocol
from fusebackend.testing.each import each

OUTPUTS: dict[str, tuple[str, int]] = {
    "echo hello": ("hello\n", 0),
    "printf hello": ("hello", 0),
    "true": ("<no output>", 0),
    "false": ("<no output>\n\nExit code: 1", 1),
    "echo out; echo err >&2; echo more >&2": ("out\n[stderr] err\n[stderr] more", 0),
    "printf out; echo err >&2": ("out\n[stderr] err", 0),
    "printf 'one\\n\\ntwo\\n' >&2; exit 3": ("[stderr] one\n[stderr] \n[stderr] two\n\nExit code: 3", 3),
    "echo out; exit 255": ("out\n\nExit code: 255", 255),
    "kill -TERM $$": ("<no output>\n\nExit code: 143", 143),
    "printf '\\303\\274 \\377'": ("ü �", 0),
    "cat; echo end of input": ("end of input\n", 0),
    "exec >&-; exec 2>&-; exit 4": ("<no output>\n\nExit code: 4", 4),
}

Made = Callable[..., Any]
"""Make a backend over the fixture's files, with other options."""


class CommandCases:
    """A subclass has the fixtures `backend`, and `made`, which makes another one with options."""

    id_form: ClassVar[str]
    flood: ClassVar[int] = 150_000_000
    """Bytes of standard output that are written, and as many thirds of the standard error."""

    def test_output_and_exit_code(self, backend: Any) -> None:
        for case in each({command: (command, *told) for command, told in OUTPUTS.items()}):
            with case as (command, output, code):
                response = backend.execute(command)
                assert (response.output, response.exit_code, response.truncated) == (output, code, False)

    def test_output_is_cut_at_its_limit(self, made: Made) -> None:
        with made(max_output_bytes=10) as backend:
            response = backend.execute("printf 0123456789abc; exit 2")
            assert response.output == "0123456789\n\n... Output truncated at 10 bytes.\n\nExit code: 2"
            assert response.truncated
            assert backend.execute("printf 0123456789").output == "0123456789"
            assert backend.execute("printf '123456789ü'").output == "123456789\n\n... Output truncated at 10 bytes."

    def test_a_flood_does_not_fill_the_memory(self, made: Made) -> None:
        with made(max_output_bytes=1000) as backend:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            command = f"head -c {self.flood} /dev/zero | tr '\\000' y; head -c {self.flood // 3} /dev/zero >&2; echo"
            response = backend.execute(command, timeout=60)
            assert (response.exit_code, response.truncated, len(response.output)) == (0, True, 1000 + 37)
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000

    def test_a_time_out_in_a_flood(self, backend: Any) -> None:
        begin = time.monotonic()
        response = backend.execute("yes", timeout=1)
        assert time.monotonic() - begin < 30
        assert (response.exit_code, response.truncated) == (124, True)
        assert response.output.startswith("Error: Command timed out after 1 seconds.\n\ny\ny\n")
        assert backend.execute("sleep 1000", timeout=1).output == "Error: Command timed out after 1 seconds."
        assert backend.execute("echo on").output == "on\n"

    def test_a_time_out_must_be_above_0(self, backend: Any, made: Made) -> None:
        for seconds in (0, -1):
            with pytest.raises(ValueError, match="above 0"):
                made(timeout=seconds)
            with pytest.raises(ValueError, match="above 0"):
                backend.execute("true", timeout=seconds)

    def test_it_is_a_sandbox_with_an_id(self, backend: Any, made: Made) -> None:
        with made() as other:
            assert isinstance(backend, SandboxBackendProtocol)
            assert re.fullmatch(self.id_form, backend.id)
            assert backend.id == backend.id != other.id

    @pytest.mark.trio
    async def test_aexecute_under_trio(self, backend: Any) -> None:
        assert (await backend.aexecute("echo x", timeout=30)).output == "x\n"
