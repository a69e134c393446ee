"""Claude's memory tool on a mount, without an API key: the answers of the model come from a script.

    pip install -e '.[anthropic]'
    fusebackend mount /mnt/agent
    python examples/claude_memory.py /mnt/agent
    cat /mnt/agent/memories/coffee.md

It is Anthropic's own client and tool runner; only what would go over the network is answered here. Leave `http_client`
out, and it is Claude.
"""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import httpx2
from anthropic import Anthropic

import fusebackend
from fusebackend.integrations.anthropic_memory import MemoryTool

SCRIPT: list[dict[str, Any]] = [
    {"command": "view", "path": "/memories"},
    {"command": "create", "path": "/memories/coffee.md", "file_text": "They like coffee.\n"},
    {"command": "insert", "path": "/memories/coffee.md", "insert_line": 1, "insert_text": "Without milk."},
]
"""What the model does, command by command. Then it says that it is done."""


def scripted() -> httpx2.MockTransport:
    """A network on which the model answers with one command after the other."""
    numbers = itertools.count()

    def answer(request: httpx2.Request) -> httpx2.Response:
        number = next(numbers)
        if number < len(SCRIPT):
            block = {"type": "tool_use", "id": f"call-{number}", "name": "memory", "input": SCRIPT[number]}
        else:
            block = {"type": "text", "text": "I have noted it."}
        message = {"id": f"message-{number}", "type": "message", "role": "assistant", "model": "scripted"}
        message |= {"content": [block], "usage": {"input_tokens": 0, "output_tokens": 0}, "stop_sequence": None}
        message |= {"stop_reason": "tool_use" if number < len(SCRIPT) else "end_turn"}
        return httpx2.Response(200, json=message)

    return httpx2.MockTransport(answer)


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        sys.exit("usage: claude_memory.py MOUNTPOINT")
    network = httpx2.Client(transport=scripted())
    with fusebackend.connect(arguments[0]) as files, Anthropic(api_key="none", http_client=network) as claude:
        runner = claude.beta.messages.tool_runner(
            model="claude-sonnet-5-5",
            max_tokens=1000,
            messages=[{"role": "user", "content": "Remember that I like coffee, without milk."}],
            tools=[MemoryTool(files)],
        )
        for message in runner:
            for block in message.content:
                print(block.text if block.type == "text" else json.dumps(block.input))


if __name__ == "__main__":
    main(sys.argv[1:])
