"""The parts of a running mount.

api.py               `fusebackend.mount()`
live.py              everything that belongs to one mount, put together
mounted.py           its agent face
command_executor.py  where its commands run
guest.py             … in a default backend that runs commands itself
binds.py             … in a container of this machine, which sees the routes as bind mounts
carrying.py          … elsewhere: the routes' files are carried there and back
"""
