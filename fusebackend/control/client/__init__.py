"""The client's side of the control socket.

client.py            `Client`, `connect`
pool.py              connections, one for each call
client_connection.py one connection; changes, one after the other
"""
