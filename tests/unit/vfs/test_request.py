"""`current`: the request is made once, and never outlives the next one of the same worker."""

from __future__ import annotations

import contextvars
from types import SimpleNamespace

from fusebackend.vfs.calls import request


def test_a_request_is_made_once_and_anew_for_the_next() -> None:
    def worker() -> None:
        request.asked.set(("create", SimpleNamespace(pid=7, uid=8, gid=9)))
        first = request.current()
        assert first == request.Request("create", 7, 8, 9)
        assert request.current() is first
        request.asked.set(("forget", None))
        assert request.current() == request.Request("forget")
        request.asked.set(("write", None))
        assert request.current() == request.Request("write")
        request.on_behalf_of(first)
        assert request.current() == request.Request("write", 7, 8, 9)
        request.asked.set(("lookup", SimpleNamespace(pid=10, uid=11, gid=12)))
        assert request.current() == request.Request("lookup", 10, 11, 12)

    before = request.current()
    contextvars.Context().run(worker)
    assert request.current() is before
