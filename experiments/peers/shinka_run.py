"""Runs ShinkaEvolve on the trivial problem, in its own environment: python shinka_run.py GENERATIONS."""

from __future__ import annotations

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import trivial
from shinka.core import EvolutionConfig, ShinkaEvolveRunner
from shinka.database import DatabaseConfig
from shinka.launch import LocalJobConfig

WORKERS = 4


class Instant(BaseHTTPRequestHandler):
    """A server of the OpenAI API that answers at once."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """A module."""
        self.rfile.read(int(self.headers.get("content-length", 0)))
        text = f"<NAME>\nn\n</NAME>\n<DESCRIPTION>\nd\n</DESCRIPTION>\n<CODE>\n```python\n{trivial.candidate()}```\n</CODE>\n"
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        answer = {"id": "x", "object": "chat.completion", "created": 0, "model": "instant", "choices": [choice], "usage": usage}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given: object) -> None:
        """Nothing."""


def main(generations: int) -> None:
    """Searches, or goes on."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Instant)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = trivial.folder()
    start = folder / "start.py"
    start.write_text(trivial.module(0))
    evolution = EvolutionConfig(
        patch_types=["full"],
        patch_type_probs=[1.0],
        num_generations=generations,
        llm_models=[f"local/instant@http://127.0.0.1:{server.server_address[1]}/v1"],
        llm_dynamic_selection=None,
        llm_dynamic_selection_kwargs={},
        llm_kwargs={"temperatures": 0.0, "max_tokens": 1024},
        meta_rec_interval=None,
        embedding_model=None,
        init_program_path=str(start),
        results_dir=str(folder / "out"),
        max_novelty_attempts=1,
    )
    jobs = LocalJobConfig(eval_program_path=str(Path(__file__).parent / "evaluate.py"), time="00:00:05")
    database = DatabaseConfig(db_path=str(folder / "out" / "programs.sqlite"), num_islands=2)
    runner = ShinkaEvolveRunner(
        evo_config=evolution,
        job_config=jobs,
        db_config=database,
        verbose=False,
        max_evaluation_jobs=WORKERS,
        max_proposal_jobs=WORKERS,
    )
    runner.run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
