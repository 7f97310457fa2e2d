"""A client's own loss survives the end of everything: the gradient that was answered is made
again.
"""

from pathlib import Path
from typing import Any

import pytest
from chaos import files_of
from custom_support import SQUARES, by_hand
from served import Served
from tinker_client import TinkerClient

pytestmark = pytest.mark.e2e


def _trained(directory: Path, model: str, *, killed: bool) -> tuple[list[Any], dict[str, bytes]]:
    """Answers of a training, and what it ends up with."""
    arguments = ("--model", model, "--engine", "scripted", "--deterministic")
    with Served(directory, *arguments) as served:
        client = TinkerClient(served.url, served.key)
        client.open(model, rank=4, seed=1)
        loss_id = client.custom_loss(by_hand(*SQUARES))
        if killed:
            served.kill(everything=True)
            served.start()
        answers = [client.result(client.gradient(1, seq=client.number(), loss_id=loss_id))]
        if killed:
            served.kill(everything=True)
            served.start()
        answers.append(client.result(client.step()))
        answers.append(client.result(client.gradient(2, seq=client.number(), loss_id=loss_id)))
        found = files_of(served.directory, client.save("final"))
        client.finish()
        client.close()
    return answers, found


def test_it_is_there_after_the_end_of_everything(tmp_path: Path, byte_model: Path) -> None:
    calm = _trained(tmp_path / "calm", str(byte_model), killed=False)
    wild = _trained(tmp_path / "wild", str(byte_model), killed=True)
    assert calm == wild
    assert calm[0][1]["metrics"]["grad_norm:mean"] > 0
