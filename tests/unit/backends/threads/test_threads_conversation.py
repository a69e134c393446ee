"""`conversation.py`: every part of a message is found once, and nothing that a message says makes it another one."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

from for_each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from profiles import examples

from fusebackend.backends.threads.conversation import files_of, section, slug, title

NOON_NS = 1_795_350_871_000_000_000  # 2026-11-22 12:34:31 UTC
PNG = b"\x89PNG\r\n\x1a\n rest"
ENCODED = base64.b64encode(PNG).decode()


def headings(markdown: str) -> list[tuple[str, str]]:
    tokens = MarkdownIt().parse(markdown)
    return [(token.tag, tokens[at + 1].content) for at, token in enumerate(tokens) if token.type == "heading_open"]


def human(text: Any, **more: Any) -> dict[str, Any]:
    return {"type": "human", "content": text, "id": "1", **more}


def tool(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool", "content": content, "name": "grep", "tool_call_id": "c1", "status": "success", **more}


def names(message: dict[str, Any], number: int = 1) -> list[str]:
    return [file.name for file in files_of(number, message)]


class TestHostile:
    @settings(max_examples=examples(300), deadline=None)
    @given(
        st.lists(
            st.sampled_from(
                [
                    "`",
                    "```",
                    "~~~",
                    "\n",
                    "#",
                    " ",
                    "x",
                    "---",
                    "<!--",
                    ">",
                    "-",
                    "1.",
                    "\t",
                    "    ",
                    "\\",
                    "=",
                    "<pre>",
                ]
            ),
            max_size=14,
        ).map("".join)
    )
    def test_of_any_text(self, text: str) -> None:
        shown = section(1, human(text), NOON_NS) + section(2, tool(text), NOON_NS) + section(3, human("end"), NOON_NS)
        assert [found[1] for found in headings(shown)] == [
            "1 · human · 12:34:31",
            "2 · tool grep · 12:34:31",
            "3 · human · 12:34:31",
        ]

    def test_a_tools_name_is_a_part_of_a_file_name(self) -> None:
        assert names(tool("x", name="../../etc/passwd\n\x1b[2J")) == ["0001-tool-_.._etc_passwd_2J.txt"]
        assert len(names(tool("x", name="n" * 500))[0]) < 100

    def test_a_tools_result_is_byte_for_byte(self) -> None:
        assert files_of(3, tool("a\x1b[31m\r\n"))[0] == ("0003-tool-grep.txt", b"a\x1b[31m\r\n")
        assert files_of(3, tool("\udcff"))[0].data == b"\xff"
        assert files_of(3, tool("\ud800"))[0].data == b"?"

    def test_values_of_a_thousand_levels(self) -> None:
        deep: Any = "x"
        for _ in range(1000):
            deep = [deep]
        message = {"type": "ai", "content": "see", "tool_calls": [{"name": "t", "args": {"deep": deep}, "id": "c"}]}
        assert "more characters" in section(1, message, 0)
        (_, made) = files_of(1, message)
        assert made.name == "0001-ai.calls.json"
        assert b"".join(made.data.split()).count(b"[") == 1001


class TestFiles:
    def test_a_conversation(self) -> None:
        ai = {
            "type": "ai",
            "content": [
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "look first"}]},
                {"type": "text", "text": "I look."},
            ],
            "tool_calls": [{"name": "grep", "args": {"pattern": "TODO"}, "id": "c1", "type": "tool_call"}],
            "invalid_tool_calls": [{"name": "rm", "args": "{", "id": "c2", "error": "no JSON"}],
        }
        assert names(human("hi")) == ["0001-human.md"]
        assert names(ai, 2) == ["0002-ai.md", "0002-ai.calls.json"]
        assert files_of(2, ai)[0].data.decode() == "> look first\n\nI look.\n\n"
        assert json.loads(files_of(2, ai)[1].data) == [
            {"id": "c1", "name": "grep", "args": {"pattern": "TODO"}},
            {"id": "c2", "name": "rm", "args": "{", "error": "no JSON"},
        ]
        shown = section(2, ai, NOON_NS)
        assert shown.startswith("## 2 · ai · 12:34:31\n\n> look first\n\nI look.\n\n**calls grep**\n\n```json\n")
        assert "**calls rm**: no JSON" in shown

    @for_each(
        "block",
        [
            {"type": "image", "base64": ENCODED, "mime_type": "image/png"},
            {"type": "image", "source_type": "base64", "data": ENCODED, "mime_type": "image/png"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ENCODED}},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ENCODED}"}},
            {"type": "image_url", "image_url": f"data:image/png;base64,{ENCODED}"},
        ],
    )
    def test_an_image_is_a_file_in_each_form_of_the_providers(self, block: dict[str, Any]) -> None:
        assert files_of(7, tool([block], name="shot")) == [("0007-tool-shot.png", PNG)]
        assert "![0007-tool-shot.png](messages/0007-tool-shot.png)" in section(7, tool([block], name="shot"), 0)
        both = files_of(7, human([{"type": "text", "text": "look"}, block, block]))
        assert [file.name for file in both] == ["0007-human.md", "0007-human.png", "0007-human-2.png"]

    @for_each(
        "block",
        [
            {"type": "image", "base64": "no base64!", "mime_type": "image/png"},
            {"type": "redacted_thinking", "data": "abc"},
            {"type": "non_standard", "value": {"provider": "x"}},
            {"type": "server_tool_call", "name": "web_search", "args": {"query": "q"}},
            {"what": "ever"},
            42,
        ],
    )
    def test_a_block_that_is_not_known_is_shown_as_json(self, block: Any) -> None:
        text = files_of(1, human([block]))[0].data.decode()
        assert json.loads(text.split("```json\n")[1].split("\n```")[0]) == block
        assert text in section(1, human([block]), 0)

    def test_citations_follow_their_text(self) -> None:
        text = {
            "type": "text",
            "text": "It rains.",
            "annotations": [{"type": "citation", "url": "https://x.example/a", "title": "Rain"}],
        }
        assert files_of(1, human([text]))[0].data == b"It rains.\n\n[Rain] https://x.example/a\n\n"

    def test_a_call_among_the_blocks_is_not_shown_twice(self) -> None:
        message = {
            "type": "ai",
            "content": [{"type": "tool_use", "id": "c1", "name": "grep", "input": {"pattern": "unique"}}],
            "tool_calls": [{"name": "grep", "args": {"pattern": "unique"}, "id": "c1"}],
        }
        assert section(1, message, 0).count("unique") == 1
        assert sum(file.data.count(b"unique") for file in files_of(1, message)) == 1

    def test_fields_without_a_place_of_their_own_are_shown(self) -> None:
        assert b'"mood": "good"' in files_of(1, human("hi", mood="good"))[0].data
        assert names(tool("x", artifact={"rows": [1]})) == ["0001-tool-grep.txt", "0001-tool-grep.artifact.json"]

    def test_an_empty_result_is_an_empty_file(self) -> None:
        assert files_of(1, tool("")) == [("0001-tool-grep.txt", b"")]


class TestCuts:
    def test_a_long_result_names_the_whole(self) -> None:
        text = "".join(f"line {number}\n" for number in range(1000))
        shown = section(5, tool(text), NOON_NS)
        assert "line 59\n" in shown
        assert "line 60\n" not in shown
        assert shown.endswith("more characters: [messages/0005-tool-grep.txt](messages/0005-tool-grep.txt)*\n\n")
        assert section(5, tool("x" * 10_000_000), NOON_NS).count("x") < 5_000

    def test_what_is_cut_and_what_is_said_of_it_make_the_whole(self) -> None:
        for length in (3_999, 4_000, 4_001, 9_000):
            shown = section(1, tool("y" * length), 0)
            said = re.search(r"… ([0-9,]+) more", shown)
            assert shown.count("y") + int(said[1].replace(",", "") if said else 0) == length

    def test_an_error_is_in_the_heading(self) -> None:
        assert section(1, tool("x", status="error"), NOON_NS).startswith("## 1 · tool grep · 12:34:31 · error\n")


class TestTitle:
    def test_the_first_line_of_the_first_human(self) -> None:
        assert (
            title(iter([{"type": "system", "content": "be good"}, human("\n Fix\tthe login\x1b[2J test!\nplease")]))
            == "Fix the login [2J test!"
        )
        assert title(iter([human([{"type": "image", "url": "u"}, {"type": "text", "text": "look"}])])) == "look"
        assert title(iter([{"type": "ai", "content": "hm"}])) == ""
        assert len(title(iter([human("word " * 100)]))) == 80

    def test_a_slug(self) -> None:
        assert slug("Fix the login test!") == "fix-the-login-test"
        assert slug("../../etc\n") == "etc"
        assert slug("ü€") == "untitled"
        assert len(slug("word " * 100)) <= 40
        assert slug("x" * 100) == "x" * 40
