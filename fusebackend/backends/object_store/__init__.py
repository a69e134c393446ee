"""Plain objects as files: S3, Google Cloud Storage, Azure.

backend.py   `ObjectStoreBackend`, `S3Backend`: the agent face
opening.py   from a URL to a store
remote.py    `BucketRemote`: a bucket as a `Remote`
metadata.py  modes, owners and times as object metadata
put.py       how the bytes of a file become an object
rename.py    copy and deletion, with a record in the journal
bucket/      requests to the store
"""
