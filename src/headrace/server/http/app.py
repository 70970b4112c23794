"""The pages: `/healthz /varz /connz /subsz /jsz /accountz /accstatz /metrics` and an index of them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from headrace.errors import BadInput, NotFound
from headrace.server.reports.accounts import accountz, accstatz, subsz
from headrace.server.reports.cluster import gatewayz, leafz, routez
from headrace.server.reports.connz import connz
from headrace.server.reports.form import QueryParams
from headrace.server.reports.healthz import healthz
from headrace.server.reports.jsz import jsz
from headrace.server.reports.process import thread_stacks
from headrace.server.reports.varz import varz
from headrace.server.telemetry import CONTENT_TYPE, Telemetry
from headrace.server.view import ServerView

FORMATTED_BYTES = 256 << 10
WORKERS = 2
"""Threads that make pages."""
Page = Callable[[ServerView, QueryParams], dict[str, Any]]
_ABOUT = {
    "healthz": "Can the server do its work?",
    "varz": "The server as a whole",
    "connz": "Clients",
    "subsz": "Subscriptions",
    "jsz": "JetStream",
    "accountz": "Accounts",
    "accstatz": "What the accounts moved",
    "metrics": "For Prometheus",
}
_STYLE = "body{font-family:system-ui,sans-serif;margin:2rem}a{display:block;padding:.2rem 0}small{color:#777}"


def make_app(view: ServerView, base_path: str = "") -> Starlette:
    """The application; all pages are below `base_path`."""
    requests: Counter[str] = Counter()
    telemetry = Telemetry(view)
    workers = ThreadPoolExecutor(WORKERS, "headrace-pages")

    async def off_loop(work: Callable[[], Response]) -> Response:
        """Pages take a while on a large server: clients do not wait for them."""
        return await asyncio.get_running_loop().run_in_executor(workers, work)

    def page(name: str, make: Page) -> Route:
        async def answer(request: Request) -> Response:
            requests[request.url.path] += 1
            params = QueryParams(request.query_params)
            try:
                return await off_loop(lambda: _json(make(view, params)))
            except (BadInput, NotFound) as error:
                return PlainTextResponse(str(error), 400)

        return Route(f"{base_path}/{name}", answer)

    async def health(request: Request) -> Response:
        requests[request.url.path] += 1
        params = QueryParams(request.query_params)

        def look() -> Response:
            code, document = healthz(view, params)
            return _json(document, code, is_compact=True)

        return await off_loop(look)

    async def metrics(request: Request) -> Response:
        requests[request.url.path] += 1
        return await off_loop(lambda: Response(telemetry.render(), media_type=CONTENT_TYPE))

    async def stacks(request: Request) -> Response:
        requests[request.url.path] += 1
        return await off_loop(lambda: PlainTextResponse(thread_stacks()))

    async def index(request: Request) -> Response:
        return HTMLResponse(_index(view, base_path))

    return Starlette(
        routes=[
            Route(f"{base_path}/", index),
            Route(f"{base_path}/healthz", health),
            Route(f"{base_path}/metrics", metrics),
            page("varz", lambda view, _: varz(view, requests)),
            page("connz", connz),
            page("subsz", subsz),
            page("subscriptionsz", subsz),
            page("jsz", jsz),
            page("accountz", accountz),
            page("accstatz", accstatz),
            page("routez", routez),
            page("leafz", leafz),
            page("gatewayz", gatewayz),
            page("ipqueuesz", lambda _view, _params: {}),
            Route(f"{base_path}/stacksz", stacks),
        ]
    )


def _json(document: dict[str, Any], code: int = 200, is_compact: bool = False) -> Response:
    body = msgspec.json.encode(document)
    if len(body) > FORMATTED_BYTES:
        # Written by Python itself: the decoder in C would keep the clients waiting meanwhile.
        body = json.dumps(document, indent=2, ensure_ascii=False, default=_plain).encode()
    elif not is_compact:
        body = msgspec.json.format(body, indent=2)
    return Response(body, code, media_type="application/json")


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Raw):
        return msgspec.json.decode(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _index(view: ServerView, base_path: str) -> str:
    facts = view.facts()
    links = "".join(
        f'<a href="{base_path}/{name}">/{name} <small>{about}</small></a>' for name, about in _ABOUT.items()
    )
    title = f"Headrace {facts.product_version}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1>{links}</body></html>"
    )
