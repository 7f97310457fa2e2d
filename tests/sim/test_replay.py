"""plait.sim.recorded, fit and replay: on a machine whose every time is a known formula."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hand_launch import Machine, Work, write_alone, write_shared

from plait.core.errors import ConfigError, PlaitError
from plait.core.ids import RunId, WorkerId
from plait.core.substages import Kind, Substage
from plait.obs.launch import Launch, read_launch
from plait.policies.registry import make
from plait.sim.fit import Line, curve, fit, line
from plait.sim.recorded import recorded_jobs
from plait.sim.replay import predict, setting_of
from plait.sim.schemes import Scheme
from plait.sim.setting_file import read_setting, setting_from, write_setting
from plait.sim.simulate import simulate

MODEL = "smollm2-135m"
MACHINE = Machine()
WORKS = (
    Work("short", ((4, 9, 12, 20), (6, 6, 18, 30), (5, 9, 9, 12))),
    Work("long", tuple((8, 20 + i, 30, 44, 40, 12, 9, 50) for i in range(4)), wait_s=0.5),
)


@pytest.fixture
def alone(tmp_path: Path) -> list[Launch]:
    """Both jobs one after another, on both cores and on one."""
    write_alone(tmp_path / "two", MACHINE, WORKS)
    write_alone(tmp_path / "one", MACHINE, WORKS, cores=1)
    return [read_launch(tmp_path / "two"), read_launch(tmp_path / "one")]


def substage(kind: Kind, tokens: int = 4) -> Substage:
    return Substage(
        key="k", run_id=RunId("a"), worker=WorkerId("w"), kind=kind, work_s=1.0, tokens=tokens
    )


def test_recorded_work_is_exactly_what_was_done(alone: list[Launch]) -> None:
    short, long = recorded_jobs(alone[0], model=MODEL)
    assert [step.responses for step in short.spec.recorded] == [
        tuple((n,) for n in lengths) for lengths in WORKS[0].steps
    ]
    step = long.spec.recorded[2]
    assert step.prompts == (8, 8, 8, 8)
    assert step.waits_s == ((0.5,),) * 8
    assert step.trained_tokens == 8 * 8 + sum(WORKS[1].steps[2])
    assert (short.spec.groups, short.spec.samples, short.spec.steps) == (2, 2, 3)
    assert long.spec.response.most == 64
    assert short.began_s == 1.0
    assert long.began_s == pytest.approx(short.ends_s[-1])


def test_an_evaluation_is_a_step_that_nothing_is_learned_from(tmp_path: Path) -> None:
    write_alone(tmp_path / "l", MACHINE, [replace(WORKS[0], evaluates=True)])
    launch = read_launch(tmp_path / "l")
    (job,) = recorded_jobs(launch, model=MODEL)
    assert [step.evaluates for step in job.spec.recorded] == [False, False, False, True]
    rates = fit([launch], model=MODEL)
    outcome = simulate(
        setting_of(launch, model=MODEL),
        Scheme(name="plait", sharing=make("plait")),
        rates.costs(),
    )
    (done,) = outcome.jobs
    assert len(done.step_ends_s) == 3
    assert done.finished_s > done.step_ends_s[-1]
    assert outcome.makespan_s == done.finished_s


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"prompt_tokens":8', '"prompt_tokens":-8', "0 on `prompt_tokens`: remove the line"),
        ('"turn_tokens":[9]', '"turn_tokens":["x"]', "0 on `turn_tokens`: remove the line"),
        ('"turn_tokens":[9]', '"turn_tokens":[NaN]', "0 on `turn_tokens`: remove the line"),
        ('"group":0', '"group":[]', "0 on `group`: remove the line"),
        ('"turn_tokens":[9]', '"turn_tokens":[9,9,9]', "other turns than waits or results: record"),
    ],
)
def test_samples_that_cannot_be_replayed_are_told(
    old: str, new: str, said: str, alone: list[Launch]
) -> None:
    path = alone[0].root / "jobs" / "short" / "samples.jsonl"
    text = path.read_text().replace(": ", ":").replace(", ", ",")
    assert old in text
    path.write_text(text.replace(old, new, 1))
    launch = read_launch(alone[0].root)
    with pytest.raises(PlaitError, match=said):
        simulate(
            setting_of(launch, model=MODEL),
            Scheme(name="plait", sharing=make("plait")),
            fit([launch], model=MODEL).costs(),
        )


@pytest.mark.parametrize("text", ["staleness: x", "weight: .nan", "[" * 3000, "limits: {a: !!b c}"])
def test_a_configuration_that_cannot_be_read_is_told(text: str, alone: list[Launch]) -> None:
    (alone[0].root / "jobs" / "short" / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.yaml: put it back as the launch wrote it"):
        recorded_jobs(alone[0], model=MODEL)


@pytest.mark.parametrize("value", ["many", -1, float("nan"), [1]])
def test_settings_that_a_replay_cannot_use_are_told(value: Any, alone: list[Launch]) -> None:
    path = alone[0].root / "launch.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps({**info, "settings": {**info["settings"], "max_seqs": value}}))
    with pytest.raises(ConfigError, match="from 0 on `max_seqs`: put it back"):
        read_launch(alone[0].root)


def test_steps_without_signal_are_not_trained_on(alone: list[Launch], tmp_path: Path) -> None:
    path = alone[0].root / "jobs" / "short" / "metrics.jsonl"
    rows = path.read_text().replace('"version": 2', '"version": 1').splitlines()
    path.write_text("\n".join(rows) + "\n")
    short, _ = recorded_jobs(read_launch(alone[0].root), model=MODEL)
    assert [step.trained_tokens == 0 for step in short.spec.recorded] == [False, True, False]


def test_rates_of_the_machine_are_found(alone: list[Launch]) -> None:
    rates = fit(alone, model=MODEL)
    for tokens, seconds in rates.step:
        assert seconds == pytest.approx(MACHINE.base_s + MACHINE.token_s * tokens, rel=0.06)
    for tokens, seconds in rates.step_half:
        alone_s = MACHINE.base_s + MACHINE.token_s * tokens
        assert seconds == pytest.approx(1.6 * alone_s, rel=0.06)
    assert rates.prefill_share == 1.0
    assert rates.train.fixed_s == pytest.approx(MACHINE.update_s)
    assert rates.train.per_token_s == pytest.approx(MACHINE.trained_s)
    assert rates.train_slowdown == pytest.approx(1.6)
    assert rates.publish_s == pytest.approx(MACHINE.publish_s)


def test_prompts_that_were_in_a_cache_are_not_computed_again(alone: list[Launch]) -> None:
    path = alone[0].root / "jobs" / "long" / "samples.jsonl"
    path.write_text(path.read_text().replace('"prompt_tokens": 8', '"prompt_tokens": 24'))
    launch = read_launch(alone[0].root)
    share = fit([launch], model=MODEL).prefill_share
    short, long = 3 * 2 * 8, 4 * 4 * 8  # prompts once a group: what was computed
    assert share == pytest.approx((short + long) / (short + 3 * long))


def test_half_of_the_cores_slow_down_as_measured(alone: list[Launch]) -> None:
    slowdown = fit(alone, model=MODEL).slowdown()
    for own in (substage(Kind.DECODE, 6), substage(Kind.TRAIN)):
        assert slowdown(own, substage(Kind.TRAIN), 0.5, 1.0) == pytest.approx(1.6, rel=0.02)
        assert slowdown(own, None, 1.0, 1.0) == pytest.approx(1.0)
    assert slowdown(substage(Kind.TOOL), None, 0.5, 1.0) == 1.0
    unmeasured = fit(alone[:1], model=MODEL).slowdown()
    assert unmeasured(substage(Kind.TRAIN), substage(Kind.TRAIN), 0.5, 1.0) > 1.0


def test_a_launch_alone_is_simulated_as_it_was(alone: list[Launch]) -> None:
    found = predict(alone[0], alone, model=MODEL)
    assert found.error == pytest.approx(0.0, abs=0.01)
    assert found.overheads_s["short"] == pytest.approx(MACHINE.overhead_s, abs=0.02)


class True_:
    """The machine's own costs, for what the shared launch really takes."""

    def __init__(self, machine: Machine) -> None:
        self.m = machine

    def __call__(self, model: str, device: str, n: int, **_: Any) -> "True_":
        return self

    peak_flops, memory_bytes, weight_bytes, train_bytes = 1e11, 8_000_000_000, 1, 1
    kv_bytes_per_token = 46_080

    def decode_s(self, n_rows: int, context_tokens: int, n_adapters: int = 0) -> float:
        return self.m.base_s + self.m.token_s * n_rows

    def prefill_s(self, n_tokens: int, *_: Any, **__: Any) -> float:
        return self.m.token_s * n_tokens

    def train_s(self, n_tokens: int, n_samples: int) -> float:
        return self.m.update_s + self.m.trained_s * n_tokens

    def reference_s(self, *_: Any) -> float:
        return 0.0

    def sync_s(self) -> float:
        return self.m.publish_s

    def offload_s(self) -> float:
        return 0.0

    load_s = offload_s

    def flops(self, *_: Any) -> float:
        return 0.0


def truly(alone: Launch, machine: Machine) -> Mapping[str, float]:
    """Ends of the jobs when they share the machine."""

    def slowdown(own: Substage, beside: Substage | None, compute: float, memory: float) -> float:
        return machine.half if compute < 1.0 and own.kind.on_device else 1.0

    jobs = tuple(
        replace(
            job.spec,
            recorded=tuple(
                replace(step, reward_s=machine.overhead_s) for step in job.spec.recorded
            ),
        )
        for job in recorded_jobs(alone, model=MODEL)
    )
    outcome = simulate(
        setting_of(alone, model=MODEL, specs=jobs),
        Scheme(name="plait", sharing=make("plait")),
        True_(machine),
        slowdown=slowdown,
    )
    return {job.name: job.finished_s for job in outcome.jobs}


def test_a_shared_launch_is_predicted_from_launches_alone(
    alone: list[Launch], tmp_path: Path
) -> None:
    ends_s = truly(alone[0], MACHINE)
    write_shared(tmp_path / "shared", WORKS, ends_s)
    found = predict(read_launch(tmp_path / "shared"), alone, model=MODEL)
    assert found.policy == "plait"
    assert found.live_s == pytest.approx(max(ends_s.values()))
    assert abs(found.error) < 0.02
    for name, end_s in ends_s.items():
        assert found.predicted_jobs_s[name] == pytest.approx(end_s, rel=0.03)
    apart = predict(alone[0], alone, model=MODEL)
    assert found.predicted_s < 0.9 * apart.predicted_s  # sharing pays, and it is seen


def test_a_slower_neighbourhood_is_predicted_too(tmp_path: Path) -> None:
    machine = replace(MACHINE, half=2.6)
    write_alone(tmp_path / "two", machine, WORKS)
    write_alone(tmp_path / "one", machine, WORKS, cores=1)
    both = [read_launch(tmp_path / "two"), read_launch(tmp_path / "one")]
    ends_s = truly(both[0], machine)
    write_shared(tmp_path / "shared", WORKS, ends_s)
    found = predict(read_launch(tmp_path / "shared"), both, model=MODEL)
    assert abs(found.error) < 0.02
    blind = predict(read_launch(tmp_path / "shared"), both[:1], model=MODEL)
    assert abs(blind.error) > abs(found.error)


def test_what_cannot_be_replayed_is_told(alone: list[Launch], tmp_path: Path) -> None:
    write_shared(tmp_path / "shared", [Work("other", WORKS[0].steps)], {"other": 9.0})
    shared = read_launch(tmp_path / "shared")
    with pytest.raises(ConfigError, match="has no job 'other'"):
        predict(shared, alone, model=MODEL)
    with pytest.raises(ConfigError, match="one at a time"):
        predict(shared, [], model=MODEL)
    with pytest.raises(ConfigError, match="one at a time"):
        predict(shared, alone[1:], model=MODEL)
    with pytest.raises(ConfigError, match="no work on all cores"):
        fit([alone[1]], model=MODEL)
    path = shared.root / "jobs" / "other" / "samples.jsonl"
    path.write_text('{"step": 1, "index": 0, "group": 0}\n')
    with pytest.raises(ConfigError, match="says no lengths of samples"):
        recorded_jobs(shared, model=MODEL)
    (shared.root / "jobs" / "other" / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigError, match="has no finished step"):
        recorded_jobs(read_launch(shared.root), model=MODEL)


def test_a_curve_never_falls() -> None:
    noisy = [(1.0, 1.0, 100.0), (4.0, 0.5, 100.0), (64.0, 6.0, 100.0)]
    points = curve(noisy)
    assert [round(x) for x, _ in points] == [1, 4, 64]
    assert points[0][1] == points[1][1] == pytest.approx(0.005)
    assert points[2][1] == pytest.approx(0.06)
    assert curve([(2.0, 0.01, 1.0)]) == ((2.0, 0.01),)


def test_a_line_has_no_negative_part() -> None:
    assert line([(10.0, 1.0), (20.0, 1.5)]) == Line(fixed_s=0.5, per_token_s=0.05)
    assert line([(10.0, 2.0), (20.0, 1.0)]).per_token_s > 0
    assert line([(10.0, 0.1), (20.0, 1.0)]).fixed_s == 0.0
    assert line([(10.0, 2.0)]) == Line(fixed_s=0.0, per_token_s=0.2)


def test_a_setting_of_recorded_jobs_is_written_and_read(
    alone: list[Launch], tmp_path: Path
) -> None:
    setting = setting_of(alone[0], model=MODEL)
    file = tmp_path / "setting.json"
    write_setting(setting, file)
    assert read_setting(file) == setting


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prompts": [8, 8, 8]}, "do not belong together"),
        ({"waits_s": [[0.5]]}, "do not belong together"),
        ({"results": []}, "do not belong together"),
        ({"responses": [[4], [9], [12], [-1]]}, "give 0 or more"),
        ({"responses": [[4, 1, 1], [9], [12], [1]]}, "other turns than waits"),
        ({"reward_s": "soon"}, "is no recorded step"),
        ({"prompt": [8]}, "is no recorded step"),
    ],
)
def test_a_wrong_recorded_step_is_told(
    change: dict[str, Any], said: str, alone: list[Launch]
) -> None:
    data = asdict(setting_of(alone[0], model=MODEL))
    assert setting_from(data)
    data["jobs"][0]["recorded"][0].update(change)
    with pytest.raises(ConfigError, match=said):
        setting_from(data)
