"""Models and checkpoints through the door: listed, kept, shared, copied, downloaded."""

import io
import tarfile

import pytest
from fake_house import FakeHouse
from httpx import AsyncClient
from tinker_support import Door, Model, ok

from plait.service.tinker_api.files import VALID_S


async def saved(model: Model, name: str = "ck") -> str:
    told = await model.carry_out("save_weights", path=name, user_metadata={"step": "3"})
    assert "path" in told, told
    return told["path"]


async def test_a_checkpoint_is_loaded_with_and_without_its_optimizer(door: Door) -> None:
    one = await door.session()
    model = await one.model()
    await model.gradient()
    await model.step()
    path = await saved(model)
    assert path == f"tinker://{model.model_id}/weights/ck"
    await model.gradient()
    await model.step()
    wanted = (await model.gradient(forward=True)).metrics["loss:sum"]
    losses = []
    for number, optimizer in ((50, True), (51, False)):
        body = {"session_id": one.session_id, "model_seq_id": number, "path": path}
        made = await one.result(await ok(one.post("load_weights", optimizer=optimizer, **body)))
        assert made["model_id"] == f"{one.session_id}:train:{number}"
        other = Model(session=one, model_id=made["model_id"])
        assert (await ok(one.post("get_info", model_id=other.model_id)))["lora_rank"] == 4
        await other.gradient()
        await other.step()
        losses.append((await other.gradient(forward=True)).metrics["loss:sum"])
    assert abs(losses[0] - wanted) < 1e-4 < abs(losses[1] - wanted)
    again = await model.carry_out("load_weights", path=path, optimizer=True)
    assert again["path"] == path


async def test_a_name_that_is_taken_fails_at_once(door: Door) -> None:
    model = await (await door.session()).model()
    await saved(model)
    failed = await model.carry_out("save_weights", path="ck")
    assert failed["category"] == "user"
    assert "ck" in failed["error"]
    over = await model.carry_out("save_weights", path="ck", overwrite=True)
    assert over["path"].endswith("/ck")


async def test_runs_and_checkpoints_are_listed(door: Door) -> None:
    one = await door.session()
    models = [await one.model(user_metadata={"name": "x", "n": 3}) for _ in "ab"]
    await saved(models[0])
    await models[0].carry_out("save_weights_for_sampler", path="sam")
    runs = await one.get("training_runs", limit=1)
    assert [r["training_run_id"] for r in runs["training_runs"]] == [models[1].model_id]
    assert runs["cursor"] == {"offset": 0, "limit": 1, "total_count": 2}
    run = await one.get(f"training_runs/{models[0].model_id}")
    assert run["base_model"] == door.base_model
    assert run["user_metadata"] == {"name": "x", "n": "3"}
    assert run["last_checkpoint"]["checkpoint_id"] == "weights/ck"
    assert run["last_sampler_checkpoint"]["checkpoint_id"] == "sampler_weights/sam"
    listed = (await one.get(f"training_runs/{models[0].model_id}/checkpoints"))["checkpoints"]
    assert {c["checkpoint_type"] for c in listed} == {"training", "sampler"}
    assert all(c["size_bytes"] > 0 for c in listed)
    mine = await one.get("checkpoints", limit=1, offset=1)
    assert mine["cursor"]["total_count"] == 2
    assert len(mine["checkpoints"]) == 1
    info = await ok(one.post("weights_info", tinker_path=listed[0]["tinker_path"]))
    assert (info["lora_rank"], info["train_mlp"], info["train_unembed"]) == (4, True, False)


async def test_a_checkpoint_is_published_copied_kept_and_deleted(door: Door) -> None:
    one, other = await door.session("alice"), await door.session("bob")
    path = await saved(await one.model())
    run, _, checkpoint = path.removeprefix("tinker://").partition("/")
    at = f"/api/v1/training_runs/{run}/checkpoints/{checkpoint}"
    load = {"session_id": other.session_id, "model_seq_id": 70, "path": path, "optimizer": False}
    assert (await other.post("weights_info", tinker_path=path)).status_code == 404
    assert (await other.http.post(f"{at}/publish")).status_code == 404
    assert (await one.http.post(f"{at}/publish")).status_code == 204
    assert (await other.post("weights_info", tinker_path=path)).status_code == 200
    made = await other.result(await ok(other.post("load_weights", **load)))
    assert made["model_id"] == f"{other.session_id}:train:70"
    copy = (await ok(other.post("copy_weights", source_path=path)))["tinker_path"]
    assert copy != path
    assert (await one.http.delete(f"{at}/publish")).status_code == 204
    assert (await other.post("weights_info", tinker_path=path)).status_code == 404
    assert (await other.post("weights_info", tinker_path=copy)).status_code == 200
    assert (await one.http.put(f"{at}/ttl", json={"ttl_seconds": 3600})).status_code == 204
    (kept,) = (await one.get("checkpoints"))["checkpoints"]
    assert kept["expires_at"] is not None
    assert kept["public"] is False
    assert (await one.http.put(f"{at}/ttl", json={"ttl_seconds": None})).status_code == 204
    (kept,) = (await one.get("checkpoints"))["checkpoints"]
    assert kept["expires_at"] is None
    for method in ("delete", "post", "put"):
        what = {"delete": "", "post": "/publish", "put": "/ttl"}[method]
        body = {"json": {"ttl_seconds": 3600}} if method == "put" else {}
        assert (await getattr(other.http, method)(at + what, **body)).status_code == 404
    assert (await one.http.delete(at)).status_code == 204
    assert (await one.http.delete(at)).status_code == 404
    assert (await one.get("checkpoints"))["checkpoints"] == []


@pytest.mark.parametrize("door", ["real"], indirect=True)
async def test_a_checkpoint_is_pinned_by_its_owner_alone(door: Door) -> None:
    one, other = await door.session("alice"), await door.session("bob")
    path = await saved(await one.model())
    run, _, checkpoint = path.removeprefix("tinker://").partition("/")
    at, pin = f"/api/v1/training_runs/{run}/checkpoints/{checkpoint}", "/v1/checkpoints/pin"
    assert (await one.http.post(f"{at}/publish")).status_code == 204

    async def pinned() -> list[bool]:
        told = (await one.http.get("/v1/checkpoints")).json()
        return [line["pinned"] for line in told["checkpoints"]]

    for method in ("POST", "DELETE"):
        asked = await other.http.request(method, pin, params={"path": path})
        assert asked.status_code == 404, "a public one is read, not changed"
    assert (await one.http.post(pin, params={"path": path})).status_code == 204
    assert await pinned() == [True]
    for refused in (
        await one.http.delete(at),
        await one.http.delete("/v1/checkpoints", params={"path": path}),
    ):
        assert refused.status_code == 400, "not 409, which clients send again"
        assert "unpin it first" in refused.json()["error"]["message"]
    assert (await one.http.delete(pin, params={"path": path})).status_code == 204
    assert await pinned() == [False]
    assert (await one.http.delete(at)).status_code == 204


async def test_paths_that_are_none_are_refused(door: Door) -> None:
    one = await door.session()
    for path in ("weights/a", "tinker://a/b", "tinker://../weights/x", "tinker://a:train:0/up/x"):
        assert (await one.post("weights_info", tinker_path=path)).status_code == 400, path
    model = await one.model()
    at = f"/api/v1/training_runs/{model.model_id}/checkpoints"
    assert (await one.http.delete(f"{at}/weights/..%2f..%2fetc")).status_code in (400, 404, 405)
    assert (await one.http.delete(f"{at}/up/x")).status_code == 400
    assert (await one.http.delete(f"{at}/weights/none")).status_code == 404


async def test_a_checkpoint_is_downloaded_without_a_key(door: Door) -> None:
    one = await door.session()
    model = await one.model()
    told = await model.carry_out("save_weights_external", path="out")
    assert told["size_bytes"] > 0
    run, _, checkpoint = told["path"].removeprefix("tinker://").partition("/")
    at = f"/api/v1/training_runs/{run}/checkpoints/{checkpoint}"
    links = (await one.get(at.removeprefix("/api/v1/") + "/external_weights_urls"))["urls"]
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(links)
    answer = await one.http.get(f"{at}/archive")
    assert answer.status_code == 302
    transport = one.http._transport
    async with AsyncClient(transport=transport) as stranger:
        whole = {}
        for name, url in links.items():
            got = await stranger.get(url)
            assert got.status_code == 200
            whole[name] = got.content
        tar = await stranger.get(answer.headers["location"])
        with tarfile.open(fileobj=io.BytesIO(tar.content)) as archive:
            packed = {m.name: archive.extractfile(m).read() for m in archive.getmembers()}  # type: ignore[union-attr]
        assert packed == whole
        url = links["adapter_config.json"]
        for forged in (url[:-2] + "AA", url + "x", url.rpartition("/")[0] + "/abc"):
            assert (await stranger.get(forged)).status_code == 404
    other = await door.session("bob")
    assert (await other.http.get(f"{at}/archive")).status_code == 404
    assert (await other.http.get(f"{at}/external_weights_urls")).status_code == 404


async def test_a_download_ends_in_time(fake: FakeHouse, fake_door: Door) -> None:
    one = await fake_door.session()
    path = await saved(await one.model())
    run, _, checkpoint = path.removeprefix("tinker://").partition("/")
    at = f"training_runs/{run}/checkpoints/{checkpoint}"
    link = (await one.get(f"{at}/external_weights_urls"))["urls"]["adapter_config.json"]
    assert (await one.http.get(link)).status_code == 200
    fake.now += VALID_S + 1
    assert (await one.http.get(link)).status_code == 404
