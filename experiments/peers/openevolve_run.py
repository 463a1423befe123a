"""Runs OpenEvolve on the trivial problem, in its own environment: python openevolve_run.py ITERATIONS [CHECKPOINT]."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import trivial
from openevolve.config import Config, LLMModelConfig
from openevolve.controller import OpenEvolve
from openevolve.llm.base import LLMInterface

WORKERS = 4
TIMEOUT_S = 5


class Instant(LLMInterface):
    """Answers at once."""

    async def generate(self, prompt: str, **options: Any) -> str:
        """A module."""
        return f"```python\n{trivial.candidate()}```"

    async def generate_with_context(self, system_message: str, messages: list[dict[str, str]], **options: Any) -> str:
        """A module."""
        return f"```python\n{trivial.candidate()}```"


def client(config: LLMModelConfig) -> Instant:
    """Made in every worker."""
    return Instant()


async def main(iterations: int, checkpoint: str | None) -> None:
    """Searches, or goes on."""
    folder = trivial.folder()
    start, evaluator = folder / "start.py", Path(__file__).parent / "evaluate.py"
    start.write_text(trivial.module(0))
    config = Config(max_iterations=iterations, checkpoint_interval=100, diff_based_evolution=False, log_level="WARNING")
    config.llm.models = [LLMModelConfig(name="instant", init_client=client, api_key="none", timeout=60, retries=0, retry_delay=0)]
    config.llm.evaluator_models = config.llm.models
    config.database.population_size = 100_000
    config.evaluator.parallel_evaluations = WORKERS
    config.evaluator.cascade_evaluation = False
    config.evaluator.timeout = TIMEOUT_S
    engine = OpenEvolve(str(start), str(evaluator), config=config, output_dir=str(folder / "out"))
    await engine.run(iterations=iterations, checkpoint_path=checkpoint)


if __name__ == "__main__":
    os.environ.setdefault("PEERS_FOLDER", ".")
    asyncio.run(main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None))
