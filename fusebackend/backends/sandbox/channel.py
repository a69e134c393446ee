"""Scripts over `execute`: an answer of any bytes through what is a text for people to read.

The answer is printed in base64 between two lines that nobody can foresee, so that neither a prompt, nor stderr, nor a
remark about the exit code can be taken for a part of it. One that is cut, for it is too long, is asked for again and
put into a file, which is fetched.
"""

from __future__ import annotations

import base64
import binascii
import errno
import math
from typing import TYPE_CHECKING

from fusebackend.backends.sandbox.scripts import LIBRARY, SETTINGS, Script, nonce
from fusebackend.base.errors import oserror
from fusebackend.base.paths import AgentPath
from fusebackend.linux.command import TIMED_OUT
from fusebackend.protocol import ExecuteResponse

if TYPE_CHECKING:
    from fusebackend.backends.sandbox.base import BaseSandbox

SHOWN = 200
"""How much of an answer that is none is shown."""


def ask(sandbox: BaseSandbox, script: Script, timeout_s: float, looks: bool) -> bytes:
    """The answer to a script. Only one that changes nothing (`looks`) may have an answer that is too long.

    Raises:
        OSError: ETIMEDOUT, or EIO and what there was instead of an answer.
    """
    mark = nonce()
    quiet = f"{{\n{script.text}\n}} 2>/dev/null </dev/null"
    command = f"{SETTINGS}{LIBRARY}printf '\\n%s\\n' {mark}\n{quiet} | base64\nprintf '%s~\\n' {mark}"
    response = execute(sandbox, command, timeout_s)
    _, begun, rest = response.output.partition(f"\n{mark}\n")
    encoded, ended, _ = rest.partition(f"{mark}~")
    if ended:
        try:
            return base64.b64decode(encoded)
        except binascii.Error:
            raise OSError(errno.EIO, "The sandbox's shell has no base64") from None
    if response.exit_code == TIMED_OUT:
        raise oserror(errno.ETIMEDOUT)
    if begun and looks and (response.truncated or encoded):
        return _ask_for_file(sandbox, script, timeout_s)
    line = response.output.replace(mark, "").strip().partition("\n")[0]
    raise OSError(errno.EIO, f"The sandbox's shell gave no answer: {line[:SHOWN] or 'nothing at all'}")


def _ask_for_file(sandbox: BaseSandbox, script: Script, timeout_s: float) -> bytes:
    path = sandbox.path_of(AgentPath(f"/.fusebackend-{nonce()}~"))
    body = f'fb_body() {{\n{script.text}\n}}\nfb_keep() {{ fb_body 2>/dev/null </dev/null >"$1"; }}\n'
    try:
        execute(sandbox, SETTINGS + LIBRARY + body + Script().call("fb_keep", path).text, timeout_s)
        return sandbox.fetch(path)
    finally:
        execute(sandbox, Script().call("rm -f", path).text, timeout_s)


def execute(sandbox: BaseSandbox, command: str, timeout_s: float) -> ExecuteResponse:
    """`execute`, with whatever it raises as an `OSError`."""
    try:
        return sandbox.execute(command, timeout=max(1, math.ceil(timeout_s)))
    except OSError:
        raise
    except Exception as error:  # an SDK's own
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}".partition("\n")[0]) from error
