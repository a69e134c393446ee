"""What volumes, stores and threads have in common in SQLite and PostgreSQL.

libpq.py              words that a URL may carry
postgres_errors.py    psycopg's errors as `OSError`
postgres_listener.py  a thread that hears NOTIFY
sqlite_file.py        opening the file of somebody else's program
"""
