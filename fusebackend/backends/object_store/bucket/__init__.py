"""Requests to an object store, and which objects are shown as what.

requests.py      `Bucket`: the requests of a volume
object_keys.py   which objects are shown in a directory, and as what
parallel.py      one request for each of many items
multipart.py     a large object in parts
s3_extras.py     what S3 can do beyond obstore
errors.py        what obstore raises, as `OSError`
"""
