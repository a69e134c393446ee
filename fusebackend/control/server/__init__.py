"""The server's side of the control socket.

control_server.py     accepts connections
server_connection.py  serves one client
calls.py              calls and subscriptions of a connection
limiter.py            the places of calls, the order in which they get them, and the bytes that they hold

Each connection has a thread, which carries out short verbs itself; a trio loop was measured and refuted. A `read` of
1 KiB (`sqlite:`, no mount, medians on a machine at work) took 89 us so, and 180 to 234 us where a loop handed the verb
to a worker thread and had it woken for the answer: a thread's start and end of work cost two switches each way. With
the verb inside of the loop it took 90 us, but there a route that waits would hold up every other connection.
"""
