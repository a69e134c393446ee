"""`MountProtocol`: the verbs of a mount with their `a…` forms, which are made here from the table (`served.py`).

`awaited.pyi` has their signatures, for editors and mypy; `scripts/declared.py` writes it.
"""

from __future__ import annotations

from fusebackend.protocol.agent import async_twin
from fusebackend.protocol.served import SERVED, MountVerbs

__all__ = ["MountProtocol"]


class MountProtocol(MountVerbs):
    """What `fusebackend.mount` and `fusebackend.connect` return: the files of a mount, and the mount itself."""


for _name, _declared in SERVED.items():
    if f"a{_name}" not in dir(MountVerbs):
        setattr(MountProtocol, f"a{_name}", async_twin(_declared.method))
