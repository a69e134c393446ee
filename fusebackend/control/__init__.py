"""The control socket: every verb of a live mount for any program of the same user.

wire.py          frames and checks messages
verbs.py         the table of what can be asked
served.py        what a server asks of its mount
limits.py        what clients may ask for
staging.py       contents that arrive in pieces
rendezvous.py    where a client and a server meet
client/          it asks
server/          it answers

`docs/control-protocol.md` describes the wire for other languages.
"""
