"""Requests to an object store, and which objects are shown as what.

requests.py      `Bucket`: the requests of a volume; `S3Extras`: what S3 can do beyond obstore, by botocore
object_keys.py   which objects are shown in a directory, and as what
errors.py        what obstore raises, as `OSError`; requests of which the service gets too many
"""
