"""Every argument of the real SDK's ``SamplingClient.sample``, over a real house."""

import pytest
from sdk_support import NEWEST, PROGRAMS, Run
from serving import Served

pytestmark = pytest.mark.slow
ROWS = 9


def test_sample_takes_every_argument_that_it_has(run_sdk: Run, served: Served) -> None:
    told = {"url": served.url, "key": served.new_key_now("samples"), "model": served.base_model}
    found = run_sdk(NEWEST, PROGRAMS / "alternatives.py", **told)
    assert found["not asked for"] == []
    dense = found["dense"]
    assert (dense["shape"], dense["dtype"]) == ([ROWS, 3], "float32")
    assert found["sparse indices of the dense"] is None
    own, sevens, nothing = zip(*dense["rows"], strict=True)
    assert list(own) == found["prompt_logprobs"][1:]
    assert max(sevens) < 0
    assert set(nothing) == {0}

    sparse = found["sparse"]
    assert sparse["was sparse"]
    assert sparse["same layout"] == [True] * 3
    assert sparse["cells"] == pytest.approx([sevens[ROWS - 1], own[4]], abs=1e-4)
    assert sparse["sum"] == pytest.approx(sum(sparse["cells"]), abs=1e-4)

    drawn = found["drawn"]
    assert drawn["shapes"] == [[ROWS, 3], [ROWS, 3]]
    assert drawn["dtypes"] == ["torch.int64", "torch.float32"]
    assert found["again"]["tokens"] == drawn["tokens"]
    assert found["otherwise"]["tokens"] != drawn["tokens"]
    assert found["one token"] == [[0, 3], [0, 3]]

    said = found["raised"]
    assert "as many rows as the prompt has tokens behind the first, 9" in said["rows"]
    assert "name 1 to" in said["no id"]
    assert "holds id 10000000" in said["vocabulary"]
    assert "greater than or equal to -1" in said["below"]
    assert "give 0 to 20" in said["k"]
