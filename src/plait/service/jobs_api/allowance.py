"""Allowance: jobs against their tenants' limits: what they have used is told to the limits, and
what is over one is held back until it may go on.
"""

from plait.service.jobs_api.led import Led
from plait.service.limits import Limits


def keep(led: Led, limits: Limits) -> None:
    """Tell the limits what a job has used since this was last asked, and hold it back or let it
    go on as they say."""
    launch, job_id = led.launch, led.row.job_id
    if launch is None or not launch.session.has_run(job_id):
        return
    facts, tenant_id = launch.session.run(job_id).facts, led.row.tenant_id
    before_s, before = led.spent
    if facts.tokens < before:  # another life of its launch
        before_s, before = 0.0, 0
    led.spent = facts.served_s, facts.tokens
    limits.spend(tenant_id, tokens=facts.tokens - before, device_s=facts.served_s - before_s)
    if facts.stage.ended:
        return
    hold = limits.hold(tenant_id)
    led.held = "" if hold is None else hold.reason
    if facts.paused != (led.paused or bool(led.held)):
        led.hold()
