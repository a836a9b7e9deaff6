"""`antiphon chat` chats with a model in the terminal; `antiphon show ID` prints a stored conversation."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from urllib.parse import quote

from rich.console import Console

from app.cli.client import ServerClient
from app.cli.options import CommandError, safe
from app.core.types import JSONObject

HELP = "/new starts over, /model NAME changes the model, /id prints the id of the last response, /quit or Ctrl+D exits."

_REASONING = ("response.reasoning.delta", "response.reasoning_text.delta", "response.reasoning_summary_text.delta")


class Chat:
    def __init__(self, client: ServerClient, console: Console, parameters: dict[str, object]) -> None:
        """`parameters`, including the model, are sent with each request."""
        self._client = client
        self._console = console
        self._parameters = parameters
        self._previous: str | None = None
        self._kind = "line"  # style of the last output; `line` after a line break

    def interact(self) -> None:
        with suppress(ImportError):
            import readline  # noqa: F401 (line editing and history)
        self._console.print(f"{self._parameters['model']} at {self._client.url}", style="dim", highlight=False)
        self._console.print(HELP, style="dim", highlight=False)
        while (line := self._read("> ")) is not None and line not in ("/quit", "/exit"):
            command, _, rest = line.partition(" ")
            match command:
                case "":
                    pass
                case "/new":
                    self._previous = None
                case "/model" if rest:
                    self._parameters["model"] = rest.strip()
                case "/id":
                    self._console.print(self._previous or "No response yet.", highlight=False)
                case _ if command.startswith("/"):
                    self._console.print(HELP, style="dim", highlight=False)
                case _:
                    self._attempt(line)

    def _attempt(self, line: str) -> None:
        try:
            self.send(line)
        except CommandError as error:
            self._line(safe(error), "red")
        except KeyboardInterrupt:
            self._line("Stopped.", "dim")

    def send(self, text: str) -> None:
        """Raises `CommandError`."""
        items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}]
        while items:
            items = self._turn(items)

    def _turn(self, items: list[JSONObject]) -> list[JSONObject]:
        """Print the response; return the outputs of its calls."""
        body = {**self._parameters, "input": items, "stream": True}
        if self._previous:
            body["previous_response_id"] = self._previous
        response: JSONObject = {}
        for event in self._client.stream("responses", body):
            self._show(event)
            if event["type"] in ("response.completed", "response.incomplete", "response.failed"):
                response = event["response"]
        self._line("")
        if response.get("status") in (None, "failed"):
            error = response.get("error") or {"message": "The connection broke before the answer was complete."}
            raise CommandError(error["message"])
        if response["status"] == "incomplete":
            reason = (response.get("incomplete_details") or {}).get("reason") or "cancelled"
            self._line(f"The answer is incomplete: {safe(reason)}.", "yellow")
        self._previous = response["id"]
        return [output for item in response["output"] if (output := self._answer(item))]

    def _show(self, event: JSONObject) -> None:
        match event["type"]:
            case "response.output_text.delta" | "response.refusal.delta":
                self._piece(event["delta"], "")
            case kind if kind in _REASONING:
                self._piece(event["delta"], "dim italic")
            case "response.output_item.done" if event["item"]["type"] not in ("message", "reasoning"):
                self._line(call_line(event["item"]), "cyan")
            case "response.output_item.done":
                self._line("")

    def _answer(self, item: dict[str, object]) -> dict[str, object] | None:
        """A call's output or approval, from the user; None for other items."""
        match item["type"]:
            case "function_call" | "custom_tool_call":
                output = self._read(f"output of {safe(item['name'])}: ") or ""
                return {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": output}
            case "mcp_approval_request":
                approve = (self._read("approve? [y/N] ") or "").lower() in ("y", "yes")
                return {"type": "mcp_approval_response", "approval_request_id": item["id"], "approve": approve}
        return None

    def _read(self, prompt: str) -> str | None:
        """None at the end of the input."""
        try:
            return input(prompt if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            return None

    def _piece(self, text: str, style: str) -> None:
        kind = style or "text"
        if self._kind not in ("line", kind):
            self._console.print()
        self._kind = kind
        self._console.print(safe(text), style=style, end="", markup=False, highlight=False, soft_wrap=True)

    def _line(self, text: str, style: str = "") -> None:
        """An empty text only ends the current line."""
        if self._kind != "line":
            self._console.print()
        if text:
            self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
        self._kind = "line"


def call_line(item: JSONObject) -> str:
    name = ".".join(filter(None, (item.get("server_label"), item.get("name")))) or item["type"]
    arguments = item.get("arguments") or item.get("input") or item.get("code") or item.get("action") or ""
    arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    result = item.get("error") or item.get("output") or ""
    result = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    parts = [f"[{item['type']}] {name}", arguments, f"({item['status']})" if item.get("status") else ""]
    return safe(" ".join(filter(None, parts)) + (f" -> {result[:500]}" if result else ""))


def show(client: ServerClient, console: Console, response_id: str, *, as_json: bool = False) -> None:
    """Raises `CommandError`."""
    path = f"antiphon/responses/{quote(response_id, safe='')}"
    chain, translation = client.get(f"{path}/chain"), client.get(f"{path}/translation")
    if as_json:
        console.print_json(data={"chain": chain, "translation": translation})
        return
    for turn in chain["data"]:
        _show_turn(console, turn)
    for fork in chain["forks"]:
        about = f"{fork['id']} continues from {fork['previous_response_id']}: {fork['preview']}"
        _print(console, f"Fork {about}", "dim")
    _print(console, "\nBackend request", "bold")
    where = " ".join(filter(None, ("to", translation["backend"], f"({translation['profile']})", translation["url"])))
    _print(console, where, "dim")
    for warning in translation["warnings"]:
        _print(console, f"Adapted: {warning}", "yellow")
    console.print_json(data=translation["body"])


def _show_turn(console: Console, turn: JSONObject) -> None:
    response = turn["response"]
    usage = response.get("usage") or {}
    tokens = f"{usage['input_tokens']} + {usage['output_tokens']} tokens" if usage else ""
    _print(console, " ".join(filter(None, (response["id"], response["model"], response["status"], tokens))), "bold")
    for item in (*turn["input"], *response["output"]):
        _show_item(console, item)
    if error := response.get("error"):
        _print(console, f"  {error['code']}: {error['message']}", "red")


def _show_item(console: Console, item: JSONObject) -> None:
    content = item.get("content")
    if item["type"] in ("message", "reasoning"):
        parts = [*(item.get("summary") or ()), *(content if isinstance(content, list) else ())]
        text = "\n".join(part.get("text") or part.get("refusal") or f"[{part['type']}]" for part in parts)
        role = item.get("role") or "reasoning"
        _print(console, f"  {role}: {text}", "green" if role == "user" else "dim italic" if role == "reasoning" else "")
    elif item["type"].endswith("_output"):
        _print(console, f"  [{item['type']}] {item.get('output', '')}", "cyan")
    else:
        _print(console, f"  {call_line(item)}", "cyan")


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(safe(text), style=style, markup=False, highlight=False, soft_wrap=True)
