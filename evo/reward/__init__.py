"""Rewards for training models on Triton kernels, by the judge of a search: `TritonReward` for TRL, `compute_score` for verl."""

from evo.cluster.judging_pool import PoolSettings
from evo.reward.trl import TritonReward
from evo.reward.verl import compute_score

__all__ = ["PoolSettings", "TritonReward", "compute_score"]
