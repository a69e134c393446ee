"""The server's side of the control socket.

control_server.py     it accepts connections
server_connection.py  one client, served
calls.py              what a connection has under way
turns.py              whose call works next
"""
