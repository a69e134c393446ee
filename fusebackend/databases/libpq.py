"""The words of libpq that a URL of a PostgreSQL database may carry."""

LIBPQ_WORDS = (
    "application_name", "channel_binding", "connect_timeout", "gssencmode", "keepalives", "keepalives_count",
    "keepalives_idle", "keepalives_interval", "krbsrvname", "load_balance_hosts", "options", "passfile", "password",
    "port", "require_auth", "service", "sslcert", "sslcrl", "sslkey", "sslmode", "sslpassword", "sslrootcert", "sslsni",
    "target_session_attrs", "tcp_user_timeout", "user",
)  # fmt: skip
"""What a `postgresql://` URI may carry after its `?`; it is passed on to libpq."""
