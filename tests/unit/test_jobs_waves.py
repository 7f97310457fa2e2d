"""Waves: who plays on goes on together and in order; who is over is not waited for."""

import asyncio

from plait.jobs.waves import Waves


async def test_all_go_on_together_in_the_order_of_their_places() -> None:
    waves, order = Waves(3), []

    async def play(place: int, turns: int, pause_s: float) -> None:
        for turn in range(turns):
            await asyncio.sleep(pause_s)
            await waves.turn((0, place))
            order.append((turn, place))
        waves.leave()

    await asyncio.gather(play(2, 3, 0), play(0, 1, 0.02), play(1, 2, 0.01))
    assert order == [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]


async def test_a_sample_that_is_cut_off_while_it_waits_holds_nobody_up() -> None:
    waves = Waves(2)
    lost = asyncio.create_task(waves.turn((0, 0)))
    await asyncio.sleep(0)
    lost.cancel()
    await asyncio.gather(lost, return_exceptions=True)
    waves.leave()
    await asyncio.wait_for(waves.turn((0, 1)), 1)
