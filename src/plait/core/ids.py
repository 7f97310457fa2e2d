"""Identifiers: plain strings with distinct types, so that a run id cannot pass for a worker id.

Ids are made by the caller and passed in; nothing here draws a random number.
"""

from typing import NewType

TenantId = NewType("TenantId", str)
RunId = NewType("RunId", str)
JobId = NewType("JobId", str)
WorkerId = NewType("WorkerId", str)
OpId = NewType("OpId", str)

RUN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$"
"""A run's name, and its job's, is the name of its directory."""

LOCAL_TENANT = TenantId("local")
"""The tenant of everything that a person runs embedded, without a server."""
