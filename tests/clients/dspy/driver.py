"""DSPy with its language model type `responses`."""

from __future__ import annotations

from typing import Any

import dspy
import litellm  # noqa: F401  # which DSPy imports late, so that it is imported once for all runs
from scenarios import HELLO, KEY, MODEL, SUM, URL, WEATHER, WHO, play, scenario, weather


def model(**options: Any) -> dspy.LM:
    options = {"cache": False, "num_retries": 0, **options}
    return dspy.LM(f"openai/{MODEL}", model_type="responses", api_base=URL, api_key=KEY, **options)


def words(output: Any) -> str:
    return str(output["text"] if isinstance(output, dict) else output)


@scenario
def text() -> Any:
    lm = model()
    (output,) = lm(HELLO)
    used = lm.history[-1]["usage"]
    return {"text": words(output), "usage": [used["input_tokens"], used["output_tokens"]]}


@scenario
def ended() -> Any:
    """How an answer ended, which DSPy itself does not look at."""
    lm = model()
    (output,) = lm(HELLO)
    response = lm.history[-1]["response"]
    return {"text": words(output), "status": response.status, "reason": str(response.error)}


@scenario
def predicted() -> Any:
    with dspy.context(lm=model()):
        made = dspy.Predict("question -> name: str, born: int")(question=WHO)
    return {"name": made.name, "born": made.born}


@scenario
def called() -> Any:
    """Calls by native functions instead of a prompt."""
    with dspy.context(lm=model(), adapter=dspy.ChatAdapter(use_native_function_calling=True)):
        signature = dspy.Signature("question: str, tools: list[dspy.Tool] -> calls: dspy.ToolCalls")
        made = dspy.Predict(signature)(question=WEATHER, tools=[dspy.Tool(weather)])
        results = [weather(**call.args) for call in made.calls.tool_calls]
    return {"text": " ".join(results)}


@scenario
def thinking() -> Any:
    (output,) = model(reasoning={"summary": "auto"})(SUM)
    return {"text": words(output), "reasoning": output.get("reasoning_content", "")}


play()
