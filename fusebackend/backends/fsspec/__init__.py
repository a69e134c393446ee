"""Any file system of fsspec as a route: `fsspec:sftp://…`, `fsspec:ftp://…`, `fsspec:zip://…`.

asking.py     how a file system is asked, and its connection
installed.py  which protocols work here
opening.py    from a URL to a file system
reading.py    readers of open files, in ranges; of FTP with one transfer
remote.py     `FsspecRemote`: the file system as a `Remote`; `FsspecBackend`
"""
