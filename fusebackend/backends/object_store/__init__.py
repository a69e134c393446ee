"""Plain objects as files: S3, Google Cloud Storage, Azure.

backend.py        `ObjectStoreBackend`, `S3Backend`: the agent face
opening.py        from a URL to a store
volume.py         `BucketRemote`: a bucket as a `Remote`; `ObjectStoreVolume`
metadata.py       modes, owners and times as object metadata
put.py            how the bytes of a file become an object
rename.py         copy and deletion, with a record in the journal
ranged_reader.py  reading in ranges, and the blocks kept in memory
read_ahead.py     how far to read ahead, and the threads for it
bucket/           requests to the store
"""
