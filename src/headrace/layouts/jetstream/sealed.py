"""What a reader of an encrypted store needs: the server's key, and which context a file belongs to.

    meta.key = nonce | AEAD(seed)        key: HMAC-SHA-256(server key, account + context)
    meta.inf, o.dat = nonce | AEAD(…)    key: the seed

The context of a stream is its name, that of a consumer `<stream>.<consumer>`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.layouts.jetstream import _kernels
from headrace.layouts.jetstream._kernels import Disk

KEY_FILE = "meta.key"
_KEY_FILE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class StoreKey:
    """The `key` of the server's configuration (never shown) and the account the streams belong to."""

    key: str = field(repr=False)
    account: str = "$G"

    def open_file(self, disk: Disk, directory: str, context: str, data: bytes) -> bytes:
        """Decrypt a meta.inf or o.dat with the meta.key beside it. KeyNeeded when the key is wrong."""
        key_file = f"{directory}/{KEY_FILE}"
        sealed_seed, secret = disk.read(key_file, _KEY_FILE_BYTES_MAX), self.key.encode()
        cipher, seed, _ = _kernels.crypt_open_seed(sealed_seed, secret, self.account, context, file=key_file)
        return _kernels.crypt_open(cipher, seed, data, file=directory)


def is_sealed(disk: Disk, directory: str) -> bool:
    """Whether the files in a stream's or consumer's directory are encrypted."""
    return disk.entry(f"{directory}/{KEY_FILE}") is not None
