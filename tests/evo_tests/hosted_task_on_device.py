"""The task of `hosted_task` in sizes for a GPU, as a task file."""

from __future__ import annotations

from tests.evo_tests.hosted_task import ON_DEVICE

TASK = ON_DEVICE
