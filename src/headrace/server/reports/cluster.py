"""`/routez`, `/leafz`, `/gatewayz`: one process is the whole server, so these are always empty."""

from __future__ import annotations

from typing import Any

from headrace.server.reports.form import QueryParams, now
from headrace.server.view import ServerView


def routez(view: ServerView, params: QueryParams) -> dict[str, Any]:
    facts = view.facts()
    return {"server_id": facts.id, "server_name": facts.name, "now": now(), "num_routes": 0, "routes": []}


def leafz(view: ServerView, params: QueryParams) -> dict[str, Any]:
    return {"server_id": view.facts().id, "now": now(), "leafnodes": 0, "leafs": []}


def gatewayz(view: ServerView, params: QueryParams) -> dict[str, Any]:
    return {"server_id": view.facts().id, "now": now(), "outbound_gateways": {}, "inbound_gateways": {}}
