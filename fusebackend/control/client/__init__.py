"""The client's side of the control socket.

client.py            `Client`, `connect`
pool.py              connections, one for each call
client_connection.py one connection; changes, one after the other
sharing.py           what awaited calls have in common
waits.py             to wait for a socket, in a thread or a task
"""
