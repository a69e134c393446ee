"""Backends of others: any object with an agent face, asked in the words it knows.

agent_face.py    `AgentFace`: its verbs, in this package's words
answers.py       its answers, as this package's records
text_files.py    its files, where it has no upload and download
"""
