"""The client's side of the control socket.

client.py            `Client`, `connect`
client_connection.py one connection; changes, one after the other; the pool of connections, one for each call
"""
