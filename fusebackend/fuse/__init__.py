"""Mounting: pyfuse3's requests become calls of `vfs`. No module above these knows pyfuse3.

operations.py    the handlers: unpack a request, await the mounted tree once, pack the answer
session.py       one mount, from `mount(2)` to its end
notifier.py      notices to the kernel's caches
pyfuse3_patches/ features that libfuse and pyfuse3 lack

It is not named after what it does: Python binds a subpackage to its name in the parent package, and `fusebackend.mount`
is the function (`server/api.py`).
"""
