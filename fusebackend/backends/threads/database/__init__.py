"""Checkpoint databases of LangGraph, read directly, and what is in them.

rows.py                                       `Database`, the way to one, and its records
sqlite_database.py, sqlite_statements.py      SqliteSaver's
postgres_database.py, postgres_statements.py  PostgresSaver's
saver_database.py                             any other, asked by its own methods
checkpoint_names.py                           the name of a checkpoint
decode.py                                     stored values, without their classes
replay.py                                     a channel's value from what is stored of it
channel_reading.py                            a channel of one line, read ahead
activity.py                                   what a thread is doing
"""
