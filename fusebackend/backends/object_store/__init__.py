"""Plain objects as files: S3, Google Cloud Storage, Azure.

opening.py   from a URL to a store
remote.py    `BucketRemote`: a bucket as a `Remote`; `ObjectStoreBackend`, `S3Backend`
rename.py    copy and deletion, with a record in the journal
bucket/      requests to the store
"""
