"""The server's side of the control socket.

control_server.py     accepts connections
server_connection.py  serves one client
calls.py              calls and subscriptions of a connection
turns.py              the order in which calls work
"""
