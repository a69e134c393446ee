"""Any file system of fsspec as a route: `fsspec:sftp://…`, `fsspec:ftp://…`, `fsspec:zip://…`.

opening.py    from a URL to a file system; which protocols work here
reading.py    how a file system is asked, and its connection; readers of open files, of FTP with one transfer
remote.py     `FsspecRemote`: the file system as a `Remote`; `FsspecBackend`
"""
