"""The control socket: every verb of a live mount for any program of the same user.

wire.py          frames and checks messages
verbs.py         the methods of the socket, made from `protocol/served.py`, and `ServedMount`, which they call
following.py     what a mount and a client have in common: calls as they end, for `log -f`, and requests for approvals
limits.py        bounds of memory, calls and connections
rendezvous.py    the socket of a mount, and how clients find it
client/          the client's side
server/          the server's side

`docs/control-protocol.md` describes the wire for other languages.
"""
