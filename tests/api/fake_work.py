"""Work of a house in memory: one model's, at the scripted engines, at once."""

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fake_rows import Model

from plait.core.errors import RequestError
from plait.core.ids import RunId
from plait.core.operations import ForwardResult, StepResult
from plait.service import paths, work
from plait.service.ports import CheckpointInfo

if TYPE_CHECKING:
    from fake_house import FakeHouse


@dataclass(kw_only=False)
class Carrying:
    """One model's work at the engines."""

    house: "FakeHouse"
    model: Model

    @property
    def run(self) -> RunId:
        return RunId(self.model.info.model_id.replace(":", "."))

    def out(self, told: work.Work) -> work.Answer:
        house, train = self.house, self.house.train
        match told:
            case work.CreateModel():
                if told.base_model not in (house.name, str(house.model_dir)):
                    raise RequestError(f"base model {told.base_model} is not served")
                train.create(self.run, told.lora)
                return work.Created(model_id=self.model.info.model_id)
            case work.LoadModel():
                house.checkpoint(self.model.who, told.path)
                train.load(self.run, str(house.folder(told.path)), optimizer=told.optimizer)
                return work.Created(model_id=self.model.info.model_id, path=told.path)
            case work.LoadCheckpoint():
                house.checkpoint(self.model.who, told.path)
                train.load(self.run, str(house.folder(told.path)), optimizer=told.optimizer)
                return work.Loaded(path=told.path)
            case work.Batch():
                passing = train.forward(self.run, told.data, adapter=True)
                if told.train:
                    config = dict(told.config)
                    passing = train.forward_backward(self.run, told.data, told.loss, config)
                return self._drain(passing)
            case work.Step():
                result: StepResult = train.optim_step(self.run, told.adam)
                return result
            case work.SaveCheckpoint():
                return self._save(told)
            case work.Snapshot():
                folder = house.directory / f"snapshot-{len(house.samplers)}"
                folder.mkdir()
                train.save(self.run, str(folder), optimizer=False)
                sampler_id = house.add_sampler(
                    self.model.who,
                    self.model.info.session_id,
                    told.sampler_seq,
                    base_model=house.name,
                    path=None,
                    run=RunId(f"~{folder.name}"),
                    version=0,
                )
                house.rollout.load_adapter(RunId(f"~{folder.name}"), 0, str(folder))
                return work.SamplerMade(sampler_id=sampler_id)

    def _drain(self, passing: Any) -> ForwardResult:
        while True:
            try:
                next(passing)
            except StopIteration as end:
                result: ForwardResult = end.value
                return result

    def _save(self, told: work.SaveCheckpoint) -> work.Saved:
        house, info = self.house, self.model.info
        path = str(paths.Path(model_id=info.model_id, kind=told.kind, name=told.name))
        folder = house.folder(path)
        if folder.exists():
            if not told.overwrite:
                raise RequestError(f"checkpoint {path} exists: take another name, or overwrite")
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        house.train.save(self.run, str(folder), optimizer=told.optimizer)
        size = sum(file.stat().st_size for file in folder.iterdir())
        now = house.wall()
        house.kept[path] = (
            self.model.who,
            CheckpointInfo(
                model_id=info.model_id,
                kind=told.kind,
                name=told.name,
                base_model=info.base_model,
                lora=info.lora,
                created_at=now,
                size_bytes=size,
                has_optimizer=told.optimizer,
                user_metadata=told.user_metadata,
                expires_at=None if told.ttl_s is None else now + told.ttl_s,
            ),
        )
        return work.Saved(path=path, size_bytes=size)
