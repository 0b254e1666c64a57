"""Spell the ids of jobs so that no tenant can name, guess or meet those of another.

A caller's own id `cat-1` is stored as `t<digest of the tenant>.cat-1`. Two tenants may use the same
id, and neither learns of the other's.
"""

import hashlib
import re
from typing import Final

from imagefleet.producer.gateway.problems import wrong_field

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_DIGEST_CHARACTERS: Final = 16
_NO_DIGEST: Final = "-"


def stored_id(tenant: str | None, name: str) -> str:
    """Return the id under which a job of the caller's own naming is stored."""
    return f"{_prefix(tenant)}{name}"


def shown_id(tenant: str | None, job_id: str) -> str:
    """Return the id as the tenant knows it."""
    return job_id.removeprefix(_prefix(tenant))


def check_name(field: str, name: object) -> str:
    """Return a job id that a caller chose. Raises Problem."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        limit = "must be 1 to 100 letters, digits, '_', '.' or '-', and begin with one of the first"
        raise wrong_field(field, name, limit)
    return name


def tenant_digest(tenant: str) -> str:
    """Return what stands for a tenant in ids and keys: the first 16 hex digits of its SHA-256."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:_DIGEST_CHARACTERS]


def tenant_key_part(tenant: str | None) -> str:
    """Return what stands for a tenant, or for callers without one, in the names of Redis keys."""
    return _NO_DIGEST if tenant is None else tenant_digest(tenant)


def _prefix(tenant: str | None) -> str:
    return "" if tenant is None else f"t{tenant_digest(tenant)}."
