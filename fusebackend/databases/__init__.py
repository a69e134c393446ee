"""SQLite and PostgreSQL for volumes, stores and threads: connecting, retrying, errors to errno.

dsn.py        DSNs of URLs; all other modules of PostgreSQL need psycopg
postgres.py   connections that are made again when they are lost; errors
pipeline.py   several statements in one round trip, with a bound on the wait
listener.py   a thread that receives NOTIFY
sqlite.py     opening a file, transactions, errors
langgraph.py  objects of LangGraph: their classes, their databases, their errors; the state of the graph that runs
"""
