"""The core without its extras: nothing of deepagents and LangGraph is imported, and an error names the extra."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

BLOCKED = """
import sys

class Block:
    blocked = {"deepagents", "langgraph", "langchain", "langchain_core", "ormsgpack", "psycopg", "psycopg_pool"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Block())
"""


def without_extras(code: str) -> str:
    """What Python says that has none of the extras."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + code], capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_core_works_without_them():
    said = without_extras("""
import fusebackend, fusebackend.integrations.memory_files
from fusebackend.backends import CompositeBackend, InMemoryBackend, StateBackend
from fusebackend.integrations.deepagents import adopt, export
backend = CompositeBackend(StateBackend(), {"/memories/": InMemoryBackend()})
backend.write("/memories/AGENTS.md", "words")
backend.write("/f", "text")
assert adopt(backend) is backend
assert "words" in fusebackend.memory.load(backend, ["/memories/AGENTS.md"]).text
print(*(info["path"] for info in backend.glob("*").matches))
""")
    assert said == "/f /memories/AGENTS.md"


def test_urls_are_known_without_what_opens_them():
    said = without_extras("""
from fusebackend.urls import SCHEMES
print(*(name for name, scheme in SCHEMES.items() if scheme.features is not None and scheme.features.shared))
""")
    assert said == "postgres"


def test_export_names_the_extra():
    said = without_extras("""
from fusebackend.backends import InMemoryBackend
from fusebackend.integrations.deepagents import export
try:
    export(InMemoryBackend())
except ImportError as error:
    print(error)
""")
    assert said.startswith(
        "export needs deepagents 0.7 or later: pip install 'fusebackend[deepagents]' (No module named"
    )
    assert "\n" not in said


def test_importing_loads_none_of_them():
    code = """
import importlib, sys
for name in ("backends", "composite.backend", "integrations.memory_files", "integrations.deepagents",
             "databases.langgraph", "server.api", "cli.main"):
    importlib.import_module(f"fusebackend.{name}")
    extras = {"deepagents", "langgraph", "langchain", "langchain_core", "ormsgpack", "psycopg"}
    assert extras.isdisjoint(sys.modules), name
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_a_backend_without_its_extra_names_it():
    said = without_extras("""
Block.blocked.add("obstore")
for use in ("from fusebackend.backends import S3Backend", "from fusebackend.backends import *",
            "from fusebackend.backends import PostgresBackend; PostgresBackend('host=/none')"):
    try:
        exec(use)
    except ImportError as error:
        print(error)
""")
    obstore = "needs obstore, which is not installed: pip install 'fusebackend[s3]'"
    psycopg = "needs psycopg, which is not installed: pip install 'fusebackend[postgres]'"
    assert [line[line.index("needs ") :] for line in said.splitlines()] == [obstore, obstore, psycopg]
