"""Any file system of fsspec as a route: `fsspec:sftp://…`, `fsspec:ftp://…`, `fsspec:zip://…`.

backend.py    `FsspecBackend`: the agent face
opening.py    from a URL to a file system
remote.py     `FsspecRemote`: the file system as a `Remote`
reading.py    readers of open files, in ranges
told.py       what file systems raise, as `OSError`
"""
