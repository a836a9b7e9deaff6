"""pipecat's Responses service over WebSocket: a voice agent with an interrupting user."""

from __future__ import annotations

import asyncio
from typing import Any

from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import WorkerRunner
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.responses.llm import OpenAIResponsesLLMService
from scenarios import KEY, MODEL, URL, play, scenario


class Speaker(FrameProcessor):
    """The user's audible text, by turn."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[str] = [""]
        self.errors: list[str] = []
        self.spoke = asyncio.Event()
        self.ended = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMTextFrame):
            self.turns[-1] += frame.text
            self.spoke.set()
        elif isinstance(frame, LLMFullResponseEndFrame):
            self.ended.set()
        elif isinstance(frame, ErrorFrame):
            self.errors.append(frame.error)
        await self.push_frame(frame, direction)

    def next_turn(self) -> None:
        self.turns.append("")
        self.spoke.clear()
        self.ended.clear()


@scenario
async def interrupted() -> Any:
    """Interrupt the first turn after its first words, and then take two turns to their end."""
    service = OpenAIResponsesLLMService(
        api_key=KEY,
        base_url=URL,
        ws_url=f"{URL.replace('http', 'ws', 1)}/responses",
        settings=OpenAIResponsesLLMService.Settings(model=MODEL),
    )
    speaker = Speaker()
    worker = PipelineWorker(
        Pipeline([service, speaker]), params=PipelineParams(), cancel_on_idle_timeout=False, enable_rtvi=False
    )
    started = asyncio.Event()

    @worker.event_handler("on_pipeline_started")
    async def on_pipeline_started(*_: object) -> None:
        started.set()

    async def talk() -> None:
        await started.wait()
        messages: list[Any] = [{"role": "user", "content": "one"}]
        await worker.queue_frame(LLMContextFrame(LLMContext(messages)))
        await speaker.spoke.wait()
        await worker.queue_frame(InterruptionFrame())
        for text in ("two", "three"):
            messages = [
                *messages,
                {"role": "assistant", "content": speaker.turns[-1]},
                {"role": "user", "content": text},
            ]
            speaker.next_turn()
            await worker.queue_frame(LLMContextFrame(LLMContext(messages)))
            await speaker.spoke.wait()
            await speaker.ended.wait()
        await worker.queue_frame(EndFrame())

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await asyncio.wait_for(asyncio.gather(runner.run(), talk()), 60)
    return {"turns": speaker.turns, "errors": speaker.errors}


play()
