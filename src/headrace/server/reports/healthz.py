"""`/healthz`: can this server do its work? 200 and `ok`, or 503 and what is wrong.

Damage that was found on disk is a remark, not an illness: what is sound is served, and a restart would not heal it.
It stands in `damage`, beside an `ok`. A stream whose disk failed is an illness.
"""

from __future__ import annotations

from typing import Any

from headrace.server.reports.form import QueryParams
from headrace.server.view import HealthFinding, JsAccountFacts, ServerView

OK, BAD_REQUEST, NOT_FOUND, UNAVAILABLE = 200, 400, 404, 503


def healthz(view: ServerView, params: QueryParams) -> tuple[int, dict[str, Any]]:
    """(HTTP status, document). `account`, `stream` and `consumer` ask about one of them."""
    code, fatal = _about(view, params)
    if params.flag("js-enabled-only", "js-enabled", "js_enabled_only"):
        if view.facts().options.jetstream.enabled and view.jetstream() is None:
            code, fatal = (
                UNAVAILABLE,
                [HealthFinding("JETSTREAM", "JetStream is not current with the configuration")],
            )
        elif code == UNAVAILABLE:
            code, fatal = OK, []
    document: dict[str, Any] = {
        "status": "ok" if code == OK else "error" if code == BAD_REQUEST else "unavailable"
    }
    if fatal and params.flag("details"):
        document = {"status": "error", "errors": [_document(finding) for finding in fatal]}
    elif fatal:
        document["error"] = "; ".join(finding.text for finding in fatal)
    if remarks := [finding for finding in view.findings() if not finding.is_fatal]:
        document["damage"] = [_document(finding) for finding in remarks]
    return code, document


def _about(view: ServerView, params: QueryParams) -> tuple[int, list[HealthFinding]]:
    account, stream, consumer = (params.text(name) for name in ("account", "stream", "consumer"))
    if stream and not account:
        return BAD_REQUEST, [
            HealthFinding("STREAM", '"account" must not be empty when checking stream health')
        ]
    if consumer and not stream:
        return BAD_REQUEST, [
            HealthFinding("CONSUMER", '"stream" must not be empty when checking consumer health')
        ]
    if account:
        missing = _missing(view, account, stream, consumer)
        if missing is not None:
            return NOT_FOUND, [missing]
    fatal = [
        finding
        for finding in view.findings()
        if finding.is_fatal
        and (not account or finding.account in ("", account))
        and (not stream or finding.stream in ("", stream))
        and (not consumer or finding.consumer in ("", consumer))
    ]
    return (UNAVAILABLE if fatal else OK), fatal


def _missing(view: ServerView, account: str, stream: str, consumer: str) -> HealthFinding | None:
    jetstream = view.jetstream(with_streams=True)
    found: JsAccountFacts | None = None
    for each in jetstream.accounts if jetstream else ():
        found = each if each.name == account else found
    if found is None:
        return HealthFinding("ACCOUNT", f'JetStream account "{account}" not found', account)
    if not stream:
        return None
    for each in found.streams:
        if each.name == stream:
            break
    else:
        text = f'JetStream stream "{stream}" not found on account "{account}"'
        return HealthFinding("STREAM", text, account, stream)
    if consumer and all(info["name"] != consumer for info in each.consumers()):
        text = f'JetStream consumer "{consumer}" not found for stream "{stream}" on account "{account}"'
        return HealthFinding("CONSUMER", text, account, stream, consumer)
    return None


def _document(finding: HealthFinding) -> dict[str, str]:
    named = {"account": finding.account, "stream": finding.stream, "consumer": finding.consumer}
    return {
        "type": finding.kind,
        **{key: value for key, value in named.items() if value},
        "error": finding.text,
    }
