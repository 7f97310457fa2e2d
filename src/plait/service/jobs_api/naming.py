"""Naming: ids of what is submitted, so that the same submission has the same ones."""

import hashlib

from plait.core.ids import JobId


def digest(*parts: str) -> str:
    """Of texts, in this order."""
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def job_id(submission: str, number: int) -> JobId:
    """Of one job of a submission."""
    return JobId(f"j-{digest(submission, str(number))[:16]}")
