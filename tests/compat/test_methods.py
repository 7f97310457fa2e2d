"""Every method of the SDK's clients: called over a real house, and listed in the documents.

The table in ``docs/guide/tinker.md`` is made here; PLAIT_WRITE_DOCS=1 writes it anew.
"""

import os
from pathlib import Path

import pytest
from sdk_support import ENVIRONMENTS, NEWEST, PROGRAMS, Run
from serving import Served

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "tinker.md"
pytestmark = pytest.mark.slow
BEGIN, END = "<!-- methods: made by tests/compat/test_methods.py -->", "<!-- end of methods -->"
CLIENTS = {"ServiceClient", "TrainingClient", "SamplingClient", "RestClient"}

OWN = "the client's own; asks the server nothing"
OPERATORS = (
    "administration of the official service; here `plait usage`, `plait quota`, `plait keys`"
)
WHY_NOT = {
    "RestClient.assign_session_project": "no projects: use one key for each",
    "RestClient.export_session_trace": "no trace export; `plait why RUN` says what a run waits for",
    "RestClient.get_audit_log": OPERATORS,
    "RestClient.get_billing_usage": OPERATORS,
    "RestClient.get_current_checkpoint_storage_usage": OPERATORS,
    "RestClient.whoami": "reads the official service's tokens; here `GET /v1/me`",
}
NOTES = {
    "SamplingClient.get_tokenizer": "if the base model's name is a directory or is on the hub",
    "ServiceClient.create_custom_loss": "losses of listed operations ([losses](losses.md))",
    "TrainingClient.forward_backward_custom": "a `LossHandle` in one pass; a function as forward, "
    "then weighted cross-entropy",
    "SamplingClient.sample": "with every argument",
    "TrainingClient.save_weights_external": "PEFT files, not encrypted",
}
LOCAL = (
    "ServiceClient.get_console_url",
    "TrainingClient.get_console_url",
    "SamplingClient.on_queue_state_change",
)


def plain(name: str) -> str:
    """A method's name without what makes it asynchronous."""
    return name.removesuffix("_async")


def methods(run_sdk: Run, served: Served, sdk: str) -> dict[str, str]:
    told = {"url": served.url, "key": served.new_key_now("methods"), "model": served.base_model}
    return run_sdk(sdk, PROGRAMS / "methods.py", **told)


def wrong(found: dict[str, str]) -> dict[str, str]:
    """What did not do what the table says."""
    out = {}
    for name, said in found.items():
        expected = "no call" if plain(name) in LOCAL else "ok"
        refused = plain(name) in WHY_NOT and said != "ok"
        if said != expected and not refused:
            out[name] = said
    return out


def table(found: dict[str, str]) -> str:
    """One row for each method; asynchronous twins share it."""
    rows = ["| method | |", "|---|---|"]
    for name in sorted(found, key=lambda name: (name.partition(".")[0], name)):
        if name != plain(name) and plain(name) in found:
            continue
        twin = ", `…_async`" if f"{name}_async" in found else ""
        said = f"no: {WHY_NOT[name]}" if name in WHY_NOT else "yes"
        if note := NOTES.get(name) or (OWN if name in LOCAL else ""):
            said = f"{said}; {note}" if name in NOTES else note
        rows.append(f"| `{name}`{twin} | {said} |")
    return "\n".join(rows)


def test_every_method_does_what_the_table_says(run_sdk: Run, served: Served) -> None:
    found = methods(run_sdk, served, NEWEST)
    assert {name.partition(".")[0] for name in found} == CLIENTS
    assert wrong(found) == {}
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    want = f"{head}{BEGIN}\n{table(found)}\n{END}{tail}"
    if os.environ.get("PLAIT_WRITE_DOCS"):
        PAGE.write_text(want)
    assert text == want or PAGE.read_text() == want, "PLAIT_WRITE_DOCS=1 writes the table anew"


@pytest.mark.parametrize("sdk", [sdk for sdk in ENVIRONMENTS if sdk != NEWEST])
def test_every_method_of_older_clients_is_served(sdk: str, run_sdk: Run, served: Served) -> None:
    found = methods(run_sdk, served, sdk)
    assert len(found) > 50
    assert wrong(found) == {}
