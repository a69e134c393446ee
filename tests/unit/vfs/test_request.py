"""`on_behalf_of`: a request without an asker is that of the thread that opened the handle, and of its process."""

from __future__ import annotations

import contextvars

from fusebackend.vfs.calls import request


def test_a_write_is_attributed_to_the_thread_that_opened_the_handle() -> None:
    def worker() -> None:
        opener = request.Request("open", 7, 8, 9, author="a process")
        request.asked.set(request.Request("write"))
        request.on_behalf_of(opener)
        assert request.current() == request.Request("write", 7, 8, 9, "a process")
        assert opener.verb == "open", "it is that of the handle still"

    before = request.current()
    contextvars.Context().run(worker)
    assert request.current() is before
