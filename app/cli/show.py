"""`antiphon show ID`: prints a response, its chain and its translation."""

from __future__ import annotations

from urllib.parse import quote

from rich.console import Console

from app.cli.chat import call_line
from app.cli.client import ServerClient, safe
from app.core.types import JSONObject


def show(client: ServerClient, console: Console, response_id: str, *, as_json: bool = False) -> None:
    """Raises `ServerError`."""
    path = f"antiphon/responses/{quote(response_id, safe='')}"
    chain, translation = client.get(f"{path}/chain"), client.get(f"{path}/translation")
    if as_json:
        console.print_json(data={"chain": chain, "translation": translation})
        return
    for turn in chain["data"]:
        _turn(console, turn)
    for fork in chain["forks"]:
        about = f"{fork['id']} continues from {fork['previous_response_id']}: {fork['preview']}"
        _line(console, f"Fork {about}", "dim")
    _line(console, "\nChat Completions request", "bold")
    where = " ".join(filter(None, ("to", translation["backend"], f"({translation['profile']})", translation["url"])))
    _line(console, where, "dim")
    for warning in translation["warnings"]:
        _line(console, f"Adapted: {warning}", "yellow")
    console.print_json(data=translation["body"])


def _turn(console: Console, turn: JSONObject) -> None:
    response = turn["response"]
    usage = response.get("usage") or {}
    tokens = f"{usage['input_tokens']} + {usage['output_tokens']} tokens" if usage else ""
    _line(console, " ".join(filter(None, (response["id"], response["model"], response["status"], tokens))), "bold")
    for item in (*turn["input"], *response["output"]):
        _item(console, item)
    if error := response.get("error"):
        _line(console, f"  {error['code']}: {error['message']}", "red")


def _item(console: Console, item: JSONObject) -> None:
    content = item.get("content")
    if item["type"] in ("message", "reasoning"):
        parts = [*(item.get("summary") or ()), *(content if isinstance(content, list) else ())]
        text = "\n".join(part.get("text") or part.get("refusal") or f"[{part['type']}]" for part in parts)
        role = item.get("role") or "reasoning"
        _line(console, f"  {role}: {text}", "green" if role == "user" else "dim italic" if role == "reasoning" else "")
    elif item["type"].endswith("_output"):
        _line(console, f"  [{item['type']}] {item.get('output', '')}", "cyan")
    else:
        _line(console, f"  {call_line(item)}", "cyan")


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(safe(text), style=style, markup=False, highlight=False, soft_wrap=True)
