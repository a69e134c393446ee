"""Checkpoint databases of LangGraph, read directly.

rows.py                      `Database` and its records; the names of checkpoints
sql.py sqlite.py postgres.py the tables of SqliteSaver and PostgresSaver: shared statements, and the two dialects
saver.py                     any other saver, through its own methods
values.py                    stored values without their classes; a channel's value from its parts
activity.py                  the run of a thread
"""
