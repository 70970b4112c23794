"""What a reload (SIGHUP) may change: users, accounts, limits, certificates, the log. The rest needs a restart."""

from __future__ import annotations

from dataclasses import replace

from headrace.server.config.options import ServerOptions
from headrace.server.config.problems import ConfigError

# Option → how it is called in the configuration.
_FIXED = {
    "host": "host",
    "port": "port",
    "server_name": "server_name",
    "header_support": "no_header_support",
    "system_account": "system_account",
    "monitor": "http",
    "ports_file_dir": "ports_file_dir",
    "allow_non_tls": "allow_non_tls",
}
_FIXED_IN_JETSTREAM = {
    "enabled": "jetstream.enabled",
    "store_dir": "jetstream.store_dir",
    "sync": "jetstream.sync_interval",
    "sync_interval_ns": "jetstream.sync_interval",
    "domain": "jetstream.domain",
}


def check_reload(old: ServerOptions, new: ServerOptions) -> None:
    """ConfigError if a change needs a restart; then nothing at all is taken over."""
    changed = [name for key, name in _FIXED.items() if getattr(old, key) != getattr(new, key)]
    changed += [
        name
        for key, name in _FIXED_IN_JETSTREAM.items()
        if getattr(old.jetstream, key) != getattr(new.jetstream, key)
    ]
    if (old.tls is None) != (new.tls is None):
        changed.append("tls")
    elif old.tls and new.tls and old.tls.handshake_first != new.tls.handshake_first:
        changed.append("tls.handshake_first")
    if _without_certificates(old) != _without_certificates(new):
        changed.append("websocket")
    if changed:
        names = ", ".join(dict.fromkeys(changed))
        raise ConfigError(
            [f"{new.config_file or 'command line'}: to change {names} the server must be restarted"]
        )


def _without_certificates(options: ServerOptions) -> object:
    websocket = options.websocket
    if websocket is None:
        return None
    return websocket.tls is None, replace(websocket, tls=None, origins=(), same_origin=False)
