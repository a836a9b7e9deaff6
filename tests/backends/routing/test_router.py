"""Several backends as one, with real sockets: choice and fallback."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from app.backends.routing.replicas import RoutingHooks
from app.backends.routing.router import Router
from app.core.request.model_request import EncodedRequest, ModelRequest
from app.core.types.deltas import DONE
from app.core.types.request import CreateResponse
from app.errors import BackendError, InvalidRequest, NotFound
from tests.support.build import texts_of
from tests.support.exchanges import reads
from tests.support.routing import (
    DOWN,
    HELLO,
    Build,
    ask,
    build,
    model_request,
    nobody,
    refusal,
    settings,
    three,
)
from tests.support.scripted import Scripted
from tests.support.upstream import DONE as END
from tests.support.upstream import RESET, Upstream, chunk, finish, sse, status

__all__ = ["build", "three"]  # fixtures


def request_counts(*servers: Upstream) -> list[int]:
    return [len(server.requests) for server in servers]


# Which backend serves a model.


async def test_model_is_served_by_the_first_backend_whose_pattern_fits(build: Build, three: list[Upstream]) -> None:
    router = build(
        local={"url": three[0].url, "models": ["qwen*", "llama*"]},
        hub={"url": three[1].url, "models": ["*/*"]},
        cloud={"url": three[2].url},
    )
    for model in ("qwen3", "llama-3", "meta/llama-3", "gpt-5", "Qwen3"):
        await ask(router, model)
    models = [[request.json["model"] for request in server.requests] for server in three]
    assert models == [["qwen3", "llama-3"], ["meta/llama-3"], ["gpt-5", "Qwen3"]]


async def test_model_that_nobody_serves_is_refused_with_those_there_are(build: Build) -> None:
    router = build(
        local={"url": nobody(), "models": ["qwen*"], "aliases": {"fast": "qwen3"}},
        cloud={"url": nobody(), "models": ["gpt-*", "qwen*"]},
    )
    with pytest.raises(NotFound) as caught:
        router.profile("claude")
    error = caught.value
    assert (error.status, error.code, error.param) == (404, "model_not_found", "model")
    assert error.message == "No backend serves the model 'claude'. Available: fast, qwen*, gpt-*."


async def test_alias_is_sent_as_its_model(build: Build) -> None:
    router = build(
        local={"url": nobody(), "models": ["qwen*"], "profile": "vllm"},
        cloud={
            "url": nobody(),
            "models": ["gpt-*"],
            "aliases": {"fast": "gpt-5-mini", "paint": "qwen-image"},
            "profile": "openai",
            "overrides": {"request.model_map": {"gpt-5-mini": "deployment-7"}},
        },
    )
    profile = router.profile("fast")
    assert profile.name == "openai"
    assert profile.request.model_map == {"gpt-5-mini": "deployment-7", "fast": "deployment-7", "paint": "qwen-image"}
    assert router.profile("qwen3").name == "vllm"


async def test_alias_is_not_routed_again_by_its_model(build: Build, three: list[Upstream]) -> None:
    router = build(
        local={"url": three[0].url, "models": ["qwen*"]},
        cloud={"url": three[1].url, "models": ["gpt-*"], "aliases": {"paint": "qwen-image"}},
    )
    await ask(router, "paint", body_model="qwen-image")
    assert request_counts(*three) == [0, 1, 0]
    assert three[1].requests[0].json["model"] == "qwen-image"


async def test_backends_get_their_own_keys_and_one_the_callers(build: Build, three: list[Upstream]) -> None:
    router = build(
        own={"url": three[0].url, "models": ["a"], "api_key": "sk-own"},
        passing={"url": three[1].url, "models": ["b"], "api_key": "passthrough"},
        open={"url": three[2].url, "models": ["c"]},
    )
    for model in "abc":
        await ask(router, model, caller_key="sk-caller")
    keys = [server.requests[0].headers.get("authorization") for server in three]
    assert keys == ["Bearer sk-own", "Bearer sk-caller", None]


# Listed models.


def has(server: Upstream, *names: str) -> None:
    server.models = [{"id": name, "object": "model", "created": 7, "owned_by": "them"} for name in names]


async def test_models_of_all_backends_are_listed_once_with_aliases(build: Build, three: list[Upstream]) -> None:
    has(three[0], "qwen3", "whisper")
    has(three[1], "gpt-5", "qwen3", "gpt-5-mini")
    router = build(
        local={"url": three[0].url, "models": ["qwen*"]},
        cloud={"url": three[1].url, "models": ["gpt-5*"], "aliases": {"fast": "gpt-5-mini", "odd": "unlisted"}},
        dead={"url": nobody(), "models": ["claude-*", "claude"], "aliases": {"opus": "claude-5"}},
    )
    models = await router.models()
    assert [model["id"] for model in models] == ["qwen3", "gpt-5", "gpt-5-mini", "fast", "odd", "opus", "claude"]
    assert models[3] == {"id": "fast", "object": "model", "created": 7, "owned_by": "them"}
    assert models[4] == {"id": "odd", "object": "model", "created": 0, "owned_by": "cloud"}


async def test_models_that_no_backend_lists_are_an_error(build: Build) -> None:
    with pytest.raises(BackendError, match="The backend 'local' cannot be reached"):
        await build(local={"url": nobody()}, cloud={"url": nobody()}).models()


async def test_models_of_a_failing_replica_are_listed_by_another(build: Build, three: list[Upstream]) -> None:
    has(three[0], "qwen3")
    router = build(local={"url": nobody(), "replicas": [three[0].url]})
    assert [model["id"] for model in await router.models()] == ["qwen3"]


async def test_models_of_a_replica_that_is_paused_are_listed_only_if_no_other_does(
    build: Build, three: list[Upstream]
) -> None:
    three[0].always(DOWN)
    has(three[0], "old")
    has(three[1], "new")
    router = build(local={"url": three[0].url, "replicas": [three[1].url], "max_failures": 1})
    assert [model["id"] for model in await router.models()] == ["old"]
    conversations = map(str, itertools.count())
    while not three[0].requests:
        await ask(router, conversation=next(conversations))
    assert [model["id"] for model in await router.models()] == ["new"]


async def test_callers_key_is_sent_to_its_backend_alone(build: Build, three: list[Upstream]) -> None:
    for server in three:
        server.models = None  # to record the request
    one = {"url": three[0].url, "models": ["a"], "api_key": "passthrough"}
    other = {"url": three[1].url, "models": ["b"], "api_key": "passthrough"}
    for backends in ({"one": one}, {"one": one, "other": other}):
        models = await build(**backends, third={"url": nobody(), "models": ["c*"]}).models("sk-caller")
        assert [model["id"] for model in models] == [*"ab"][: len(backends)]
    keys = [[request.headers.get("authorization") for request in server.requests] for server in three]
    assert keys == [["Bearer sk-caller", None], [None], []]


async def test_router_with_one_healthy_server_is_ready(build: Build, three: list[Upstream]) -> None:
    await build(dead={"url": nobody()}, local={"url": nobody(), "replicas": [three[0].url]}).check()
    with pytest.raises(BackendError, match="The backend 'dead' cannot be reached"):
        await build(dead={"url": nobody()}, local={"url": nobody()}).check()


# Who is asked instead, as long as nothing has come.

REFUSALS = {
    "500": DOWN,
    "503": status(503, {"error": {"message": "Loading model"}}),
    "429": status(429, {"error": {"message": "Slow down."}}, {"Retry-After": "9"}),
    "our key": status(401, {"error": {"message": "No."}}),
    "no answer": [RESET],
    "an error in the first frame": sse({"error": {"message": "out of memory", "code": 500}}),
    "a stream that breaks before its first frame": sse(b": ping\n\n", RESET),
    "an empty stream": sse(),
}


@pytest.mark.parametrize("refused", REFUSALS.values(), ids=REFUSALS.keys())
@pytest.mark.parametrize("kind", ["replica", "fallback"])
async def test_backend_that_cannot_answer_is_replaced(
    build: Build, three: list[Upstream], refused: Any, kind: str
) -> None:
    three[0].always(refused)
    if kind == "replica":
        router = build(local={"url": three[0].url, "replicas": [three[1].url]})
    else:
        router = build(local={"url": three[0].url}, cloud={"url": three[1].url})
    assert await ask(router) == "Hello"
    assert request_counts(*three) == [1, 1, 0]


async def test_backend_that_refuses_connections_is_replaced_at_once(build: Build, three: list[Upstream]) -> None:
    router = build(local={"url": nobody(), "replicas": [nobody()], "retries": 5}, cloud={"url": three[0].url})
    assert await ask(router) == "Hello"


@pytest.mark.parametrize(
    "refused",
    [
        status(400, {"error": {"message": "maximum context length is 10"}}),
        status(404, {"error": {"message": "The model `m` does not exist", "code": "model_not_found"}}),
        sse({"error": {"message": "bad request", "type": "invalid_request_error"}}),
    ],
)
async def test_callers_error_is_returned_without_another_backend(
    build: Build, three: list[Upstream], refused: Any
) -> None:
    three[0].always(refused)
    router = build(local={"url": three[0].url, "replicas": [three[1].url]}, cloud={"url": three[2].url})
    assert (await refusal(router)).status in (400, 404)
    assert request_counts(*three) == [1, 0, 0]


async def test_failure_after_the_first_chunk_tries_no_other_backend(build: Build, three: list[Upstream]) -> None:
    three[0].always(sse(chunk("Hel"), RESET))
    router = build(local={"url": three[0].url}, cloud={"url": three[1].url})
    received = []
    with pytest.raises(BackendError, match="ended early"):
        async with router.open(model_request()) as answer:
            async for batch in reads(answer):
                received += batch
    assert texts_of(received) == ["Hel"]
    assert request_counts(*three) == [1, 0, 0]


async def test_last_backend_is_retried_before_the_request_fails(build: Build, three: list[Upstream]) -> None:
    hasty = status(503, {"error": {"message": "busy"}}, {"Retry-After-Ms": "1"})
    three[0].always(hasty)
    three[1].say(hasty)
    router = build(local={"url": three[0].url, "retries": 2}, cloud={"url": three[1].url, "retries": 2})
    assert await ask(router) == "Hello"
    assert request_counts(*three) == [1, 2, 0]


async def test_fallback_that_cannot_encode_the_request_is_not_observed() -> None:
    class Picky(Scripted):
        def encode(self, model_request: ModelRequest) -> EncodedRequest:
            raise InvalidRequest("Invalid 'input': too long.")

    class Observation:
        headers: Mapping[str, str] = {}
        tap = None

        def accepted(self, answer: object) -> None: ...

        def end(self, error: BaseException | None) -> None:
            ended.append(error)

    ended = list[BaseException | None]()
    servers = {"http://a/v1": Scripted([BackendError("Down.")]), "http://b/v1": Picky([])}
    tables = settings(local={"url": "http://a/v1"}, cloud={"url": "http://b/v1"})
    hooks = RoutingHooks(observers=[lambda *_: Observation()])
    error = await refusal(Router(tables, lambda table: servers[table.url], hooks))
    assert error.message == "Down."
    assert ended == [error]


async def test_failure_of_all_backends_is_that_of_the_first(build: Build, three: list[Upstream]) -> None:
    three[0].always(status(500, {"error": {"message": "The first is broken."}}))
    three[1].always(status(400, {"error": {"message": "maximum context length is 10"}}))
    three[2].always(status(429, {"error": {"message": "Slow down."}}))
    router = build(local={"url": three[0].url}, small={"url": three[1].url}, busy={"url": three[2].url})
    error = await refusal(router)
    assert (error.status, error.message) == (502, "The backend 'local' answered 500: The first is broken.")
    assert request_counts(*three) == [1, 1, 1]


@pytest.mark.parametrize(
    ("first", "second", "third", "route"),
    [
        ({"models": ["m*"]}, {"models": ["m"]}, {"models": ["*"]}, [1, 1, 0]),
        ({"models": ["*"]}, {"models": ["*"]}, {"models": ["x"]}, [1, 1, 0]),
        ({"models": ["m"]}, {"models": ["x"], "aliases": {"m": "y"}}, {"models": ["*"]}, [1, 1, 0]),
        ({"models": ["m"], "fallbacks": ["third"]}, {"models": ["m"]}, {"models": ["*"]}, [1, 0, 1]),
        ({"models": ["m"], "fallbacks": ["third", "second"]}, {"models": ["x"]}, {"models": ["*"]}, [1, 1, 1]),
        ({"models": ["m"], "fallbacks": []}, {"models": ["m"]}, {"models": ["*"]}, [1, 0, 0]),
        ({"models": ["m"]}, {"models": ["m"], "api_key": "passthrough"}, {"models": ["m"]}, [1, 0, 1]),
        ({"models": ["m"], "api_key": "passthrough"}, {"models": ["m"]}, {"models": ["m"]}, [1, 0, 0]),
    ],
)
async def test_fallbacks_of_a_backend_are_tried_in_order(
    build: Build, three: list[Upstream], first: Any, second: Any, third: Any, route: list[int]
) -> None:
    for server in three:
        server.always(DOWN)
    urls = [{"url": server.url} for server in three]
    router = build(first={**first, **urls[0]}, second={**second, **urls[1]}, third={**third, **urls[2]})
    await refusal(router)
    assert request_counts(*three) == route


async def test_fallback_gets_a_request_by_its_own_profile(build: Build, three: list[Upstream]) -> None:
    three[0].always(DOWN)
    router = build(
        local={"url": three[0].url, "profile": "vllm"},
        cloud={"url": three[1].url, "profile": "openai", "aliases": {"m": "gpt-5"}},
    )

    request = CreateResponse(model="m", input="Hi", max_output_tokens=50)
    async with router.open(ModelRequest(request, request.items(), "m")):
        pass
    limits = [server.requests[0].json for server in three[:2]]
    assert [body["model"] for body in limits] == ["m", "gpt-5"]
    assert [limits[0]["max_tokens"], limits[1]["max_completion_tokens"]] == [50, 50]


async def test_fallback_that_does_not_support_the_request_is_skipped(build: Build, three: list[Upstream]) -> None:
    three[0].always(DOWN)
    router = build(
        local={"url": three[0].url, "profile": "vllm"},
        text={"url": three[1].url, "overrides": {"request.content.images": "error"}},
        cloud={"url": three[2].url, "profile": "openai"},
    )
    image = {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "auto"}
    message = {"type": "message", "role": "user", "content": [image]}
    request = CreateResponse.model_validate({"model": "m", "input": [message]})
    async with router.open(ModelRequest(request, request.items(), "m")) as answer:
        assert [one async for chunks in reads(answer) for one in chunks][-1] is DONE
    assert request_counts(*three) == [1, 0, 1]


# Replicas.


def homes(*servers: Upstream) -> list[Counter[str]]:
    """How often each server was asked in each conversation."""
    return [Counter(request.json["messages"][0]["content"] for request in server.requests) for server in servers]


async def converse(build_router: Any, conversations: int, turns: int) -> None:
    for _ in range(turns):
        for n in range(conversations):
            await ask(build_router, conversation=f"conversation {n}")


async def test_conversation_stays_with_one_replica_and_conversations_are_spread(
    build: Build, three: list[Upstream]
) -> None:
    router = build(local={"url": three[0].url, "replicas": [three[1].url, three[2].url]})
    await converse(router, conversations=60, turns=2)
    served = homes(*three)
    assert sorted(count for home in served for count in home.values()) == [2] * 60
    assert all(len(home) >= 3 for home in served)


async def test_conversation_from_another_process_goes_to_the_same_replica(build: Build, three: list[Upstream]) -> None:
    urls = [server.url for server in three]
    await converse(build(local={"url": urls[0], "replicas": urls[1:]}), conversations=10, turns=1)
    await converse(build(local={"url": urls[2], "replicas": [urls[0], urls[1]]}), conversations=10, turns=1)
    assert all(count == 2 for home in homes(*three) for count in home.values())


async def test_conversations_of_a_replica_that_is_down_move_and_return(build: Build, three: list[Upstream]) -> None:
    router = build(local={"url": three[0].url, "replicas": [three[1].url, three[2].url], "max_failures": 100})
    await converse(router, conversations=12, turns=1)
    before = homes(*three)
    three[0].always(DOWN)
    await converse(router, conversations=12, turns=1)
    down = homes(*three)
    assert all(down[n][name] == 2 for n in (1, 2) for name in before[n])
    moved = {name for n in (1, 2) for name in down[n] if name not in before[n]}
    assert moved == set(before[0])
    three[0].always(HELLO)
    await converse(router, conversations=12, turns=1)
    assert all(homes(*three)[0][name] == 3 for name in before[0])


async def test_request_without_a_conversation_goes_to_the_least_loaded_replica(
    build: Build, three: list[Upstream]
) -> None:
    go = asyncio.Event()
    for server in three:
        server.always(sse(chunk("a"), go, finish(), END))
    router = build(local={"url": three[0].url, "replicas": [three[1].url, three[2].url]})
    async with asyncio.TaskGroup() as running:
        for _ in range(9):
            running.create_task(ask(router))
        while sum(request_counts(*three)) < 9:
            await asyncio.sleep(0.01)
        assert request_counts(*three) == [3, 3, 3]
        go.set()


async def test_replica_that_is_much_busier_is_spared(build: Build, three: list[Upstream]) -> None:
    go = asyncio.Event()
    for server in three:
        server.always(sse(chunk("a"), go, finish(), END))
    router = build(local={"url": three[0].url, "replicas": [three[1].url, three[2].url]})
    async with asyncio.TaskGroup() as running:
        for _ in range(30):
            running.create_task(ask(router, conversation="one"))
        while sum(request_counts(*three)) < 30:
            await asyncio.sleep(0.01)
        assert max(request_counts(*three)) <= 1.25 * 30 / 3 + 2
        go.set()


async def test_conversation_of_a_full_replica_goes_elsewhere(build: Build, three: list[Upstream]) -> None:
    go = asyncio.Event()
    for server in three:
        server.always(sse(chunk("a"), go, finish(), END))
    router = build(local={"url": three[0].url, "replicas": [three[1].url, three[2].url], "max_concurrency": 1})
    async with asyncio.TaskGroup() as running:
        for _ in range(3):
            running.create_task(ask(router, conversation="one"))
        while sum(request_counts(*three)) < 3:
            await asyncio.sleep(0.01)
        assert request_counts(*three) == [1, 1, 1]
        go.set()


def test_servers_of_one_backend_are_named_once() -> None:
    (backend,) = settings(local={"url": "http://a/v1", "replicas": ["http://b/v1/", "http://a/v1"]}).values()
    assert [one.url for one in backend.each()] == ["http://a/v1", "http://b/v1"]
