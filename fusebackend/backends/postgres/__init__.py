"""`PostgresBackend`: a native volume in PostgreSQL that many hosts mount at once."""
