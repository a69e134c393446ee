"""Backend URLs: their meaning, and the backends that they open.

opening.py       `scheme:rest?parameter=value&…`, parsed once, and `open_backend`
registry.py      the kinds of URLs of this package: which class has which

What a URL and a kind of URL are is in `protocol/scheme.py`: backends know those two, and nothing of this package.
"""

from fusebackend.protocol.scheme import Scheme, Url, UrlError, mask
from fusebackend.urls.opening import added_schemes, for_path, open_backend, parse, scheme_table

__all__ = ["Scheme", "Url", "UrlError", "added_schemes", "for_path", "mask", "open_backend", "parse", "scheme_table"]
