"""URLs of databases: the DSN in one, and one line for whatever keeps it from being opened."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from fusebackend.base.extras import is_installed
from fusebackend.protocol.scheme import Url, UrlError

LIBPQ_WORDS = (
    "application_name", "channel_binding", "connect_timeout", "gssencmode", "keepalives", "keepalives_count",
    "keepalives_idle", "keepalives_interval", "krbsrvname", "load_balance_hosts", "options", "passfile", "password",
    "port", "require_auth", "service", "sslcert", "sslcrl", "sslkey", "sslmode", "sslpassword", "sslrootcert", "sslsni",
    "target_session_attrs", "tcp_user_timeout", "user",
)  # fmt: skip
"""Parameters of a `postgresql://` URI that are passed on to libpq."""


def conninfo_of(url: Url) -> str:
    """The DSN of a URL, with the parameters that are libpq's. UrlError if libpq does not understand it."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import make_conninfo

    words = {name: value for name, value in url.parameters.items() if name in LIBPQ_WORDS}
    try:
        return make_conninfo(url.rest, **words)
    except ProgrammingError as error:
        raise UrlError(f"'{url.masked}': {' '.join(str(error).split())}") from None


def require_modules(url: Url, extra: str, *modules: str) -> None:
    """UrlError, with the extra to install, where one of these modules is missing."""
    for module in modules:
        if not is_installed(module):
            raise UrlError(f"'{url.masked}' needs {module}, which is not installed: pip install 'fusebackend[{extra}]'")


@contextlib.contextmanager
def url_errors(url: Url) -> Iterator[None]:
    """Raise the errors of opening a URL as `UrlError`s that name it."""
    try:
        yield
    except UrlError:
        raise
    except ModuleNotFoundError as error:
        raise UrlError(f"'{url.masked}': {error.msg}") from None
    except OSError as error:
        raise UrlError(f"'{url.masked}': {error.strerror or os.strerror(error.errno or 0)}") from error
    except ValueError as error:
        raise UrlError(f"'{url.masked}': {error}") from None
