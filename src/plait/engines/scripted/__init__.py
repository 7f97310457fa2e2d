"""The scripted engine: real scheduling and real optimization of a toy policy, without torch.

It keeps the whole engine contract (``tests/contract``), so that the runtime, the simulator and the
API can be driven in milliseconds. It is no model of any machine's speed.
"""

from plait.engines.scripted.rollout import ScriptedRollout
from plait.engines.scripted.train import ScriptedTrain

__all__ = ["ScriptedRollout", "ScriptedTrain"]
