"""`fusebackend.integrations.memory_files`, and deepagents' own memory and skills on backends of ours."""

import anyio
import pytest

pytest.importorskip("deepagents")

import graphs
from deepagents import MemoryMiddleware
from deepagents.middleware.skills import SkillsMiddleware
from seed_backends import DuckBackend, SeedInMemoryBackend

import fusebackend
from fusebackend.backends import (
    CompositeBackend,
    InMemoryBackend,
    SqliteBackend,
    StateBackend,
)
from fusebackend.integrations.deepagents import export
from fusebackend.integrations.memory_files import GUIDELINES, aload, load

AGENTS = "/memories/AGENTS.md"


@pytest.fixture
def backend():
    backend = InMemoryBackend()
    backend.write(AGENTS, "# Memory\nThe company's colour is #FD5108\n")
    return backend


def test_the_text_holds_each_file_under_its_path_and_says_how_to_keep_it(backend):
    backend.write("/project.md", "uses make\n")
    found = fusebackend.memory.load(backend, [AGENTS, "/project.md"])
    assert found.text.startswith(f"<agent_memory>\n{AGENTS}\n\n# Memory\nThe company's colour is #FD5108\n")
    assert found.text.index(AGENTS) < found.text.index("/project.md") < found.text.index(GUIDELINES)
    assert "edit_file" in GUIDELINES and "write_file" in GUIDELINES
    assert found.loaded == {AGENTS: "# Memory\nThe company's colour is #FD5108\n", "/project.md": "uses make\n"}
    assert found.missing == {}


def test_missing_files_are_skipped_and_reported(backend, caplog):
    found = load(backend, ["/none.md", AGENTS, "~/.agents/AGENTS.md"])
    assert list(found.loaded) == [AGENTS] and "/none.md" not in found.text
    assert found.missing == {"/none.md": "file_not_found", "~/.agents/AGENTS.md": "invalid_path"}
    assert caplog.messages == ["memory '~/.agents/AGENTS.md' is left out: invalid_path"]


def test_what_is_no_text_is_left_out_with_its_reason(backend, caplog):
    backend.upload_files([("/raw.md", b"\xff")])
    found = load(backend, ["/memories", "/raw.md"])
    assert found.loaded == {} and "(no memory)" in found.text
    assert found.missing["/memories"] == "is_directory" and found.missing["/raw.md"].startswith("not UTF-8")
    assert len(caplog.messages) == 2


def test_comments_are_for_people():
    backend = InMemoryBackend()
    backend.write("/a.md", "one <!-- a\nnote --> two\n")
    backend.write("/b.md", "<!-- nothing yet -->\n")
    found = load(backend, ["/a.md", "/b.md"], guidelines="")
    assert found.text == "<agent_memory>\n/a.md\n\none  two\n\n/b.md\n\n(empty)\n</agent_memory>\n"
    assert "note" in found.loaded["/a.md"]


def test_a_file_given_twice_is_read_once(backend):
    assert load(backend, [AGENTS, AGENTS]).text.count("FD5108") == 1
    assert load(backend, []).missing == {}


@pytest.mark.parametrize("wrong", [AGENTS, b"/x"])
def test_a_single_string_is_no_list(backend, wrong):
    with pytest.raises(TypeError, match="write \\["):
        load(backend, wrong)


def test_what_is_no_backend_is_refused():
    for given, words in (({}, "a dict is no backend"), (StateBackend, "makes backends and is none")):
        with pytest.raises(TypeError, match=words):
            load(given, [AGENTS])


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_aload_is_load(backend, library):
    assert anyio.run(aload, backend, [AGENTS, "/none"], backend=library) == load(backend, [AGENTS, "/none"])


def test_any_backend_will_do(backend):
    seed, duck = SeedInMemoryBackend(), DuckBackend()
    seed.write("/AGENTS.md", "old words"), duck.put("/AGENTS.md", b"no words")
    composite = CompositeBackend(backend, {"/seed/": seed, "/duck/": duck})
    found = load(composite, [AGENTS, "/seed/AGENTS.md", "/duck/AGENTS.md"])
    assert len(found.loaded) == 3 and "old words" in found.text
    assert load(seed, ["/AGENTS.md"]).loaded == {"/AGENTS.md": "old words"}


# -- deepagents' own -------------------------------------------------------------------------------------------

SKILL = """---
name: report-writing
description: How this team writes reports
---
# Report writing

Start with the result.
"""


@pytest.fixture(params=["memory", "state", "composite", "seed"])
def ours(request, tmp_path):
    made = {
        "memory": InMemoryBackend,
        "state": StateBackend,
        "composite": lambda: CompositeBackend(
            InMemoryBackend(), {"/memories/": SqliteBackend(tmp_path / "memories.db"), "/skills/": DuckBackend()}
        ),
        "seed": SeedInMemoryBackend,
    }
    backend = made[request.param]()
    uploads = [(AGENTS, b"The colour is #FD5108\n"), ("/skills/report-writing/SKILL.md", SKILL.encode())]
    assert all(answer.error is None for answer in backend.upload_files(uploads))
    yield backend
    for part in [backend, *getattr(backend, "routes", {}).values()]:
        if hasattr(part, "close"):
            part.close()


@pytest.mark.parametrize("asynchronous", [False, True], ids=["invoke", "ainvoke"])
def test_deepagents_loads_memory_and_skills_from_a_backend_of_ours(ours, asynchronous):
    agent = graphs.deep_agent(
        None,
        [graphs.say("done")],
        backend=export(ours),
        memory=[AGENTS, "~/.agents/AGENTS.md", "/none.md"],
        skills=["/skills/", "/none/"],
    )
    if asynchronous:
        anyio.run(agent.ainvoke, graphs.user("hello"))
    else:
        agent.invoke(graphs.user("hello"))
    prompt = str(agent.model.seen[0][0].content)
    assert f"{AGENTS}\n\nThe colour is #FD5108" in prompt.replace("\\n", "\n")
    assert "report-writing" in prompt and "How this team writes reports" in prompt


def test_the_middlewares_alone(ours):
    made = export(ours)
    loaded = MemoryMiddleware(backend=made, sources=[AGENTS]).before_agent({}, None, {})
    assert loaded == {"memory_contents": {AGENTS: "The colour is #FD5108\n"}}
    found = SkillsMiddleware(backend=made, sources=["/skills/"]).before_agent({}, None, {})
    assert [skill["name"] for skill in found["skills_metadata"]] == ["report-writing"]
