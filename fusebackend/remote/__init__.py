"""Files behind an API that takes and gives them whole: any object with the agent face gets a kernel face.

volume.py        `ForeignVolume`: the kernel face
tree.py          names and nodes, over listings that grow old
entry.py         what is known of a file or directory
files.py         attributes and bytes
whole_files.py   whole contents, given and taken; conflicts
buffer.py        a file while it is open
rename.py        copy, compare, delete
changes.py       what the caches above are told
agent_verbs.py   the agent's verbs over a few primitives
keys.py          keys of others as file names
files_update.py  the files in a runtime's state
"""
