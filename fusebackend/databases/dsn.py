"""DSNs of PostgreSQL: libpq's words, and what a URL has of them.

psycopg is imported where a DSN is read, for schemes are listed without it.
"""

from __future__ import annotations

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
