"""Finished trajectories with a known reward, length and status."""

from rlcore.types import Failure, Query, Sequence, Trajectory, scored, unavailable


def trajectory(reward: float | None, status: str = "completed", tokens: int = 2) -> Trajectory:
    s = Sequence()
    s.append_context([1])
    s.append_sampled([2 + i for i in range(tokens)], [-1.0] * tokens, [0] * tokens, "stop")
    t = Trajectory(Query("q"), "g", 0, [s], status=status)
    t.reward = unavailable("judge down") if reward is None else scored(reward)
    if reward is None:
        t.failure = Failure("reward_unavailable", "judge down")
    return t
