"""The server's side of the control socket.

control_server.py     accepts connections
server_connection.py  serves one client: its calls and subscriptions
limiter.py            the places of calls, the order in which they get them, and the bytes that they hold

Each connection has a thread, which carries out short verbs itself; a trio loop was measured and refuted. A `read` of
1 KiB (`sqlite:`, no mount, medians on a busy machine) took 89 us so, and 180 to 234 us where the loop gave the verb to
a worker thread (`to_thread`), for the two wake each other once for every call. With the verb in the loop it took 90 us,
but a verb may wait for a disk or a server, and every other connection would wait with it.
"""
