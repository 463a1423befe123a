"""TRL's real trainers on our data with our reward: a tiny random model, made here, nothing downloaded; the reward judges through Ray."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evo.commands.dataset import dataset_command
from evo.records import Variant
from evo.reward import PoolSettings, TritonReward, compute_score
from evo.tasks.loading import load_task, starting_sources
from tests.evo_tests.dataset_store import Recorded, failed, passed
from tests.evo_tests.reward_judges import reply_of

pytest.importorskip("trl")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]

SOFTMAX = starting_sources(load_task("softmax"))[0]
BETTER = SOFTMAX.replace(
    "    numerator = tl.exp(x - tl.max(x, axis=0))", "    high = tl.max(x, axis=0)\n    numerator = tl.exp(x - high)"
)
WRONG = SOFTMAX.replace("tl.exp(", "tl.log(")
CHAT = "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}<|assistant|>"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    run = Recorded(tmp_path_factory.mktemp("store") / "run.sqlite", ["softmax"])
    start = run.start("softmax")
    better, wrong = Variant("softmax", BETTER), Variant("softmax", WRONG)
    run.child([start], better, passed(better, 1.5))
    run.child([start], wrong, failed(wrong))
    return run.close()


@pytest.fixture(scope="module")
def data(store: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data")
    for chosen in ("sft", "preference", "grpo"):
        dataset_command([store], chosen, out / chosen)
    return out


@pytest.fixture(scope="module")
def tokenizer(data: Path) -> Any:
    """Bytes and what is frequent in the prompts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    rows = [json.loads(line) for line in (data / "grpo" / "train.jsonl").read_text().splitlines()]
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer, raw.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=["<pad>", "<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    raw.train_from_iterator((row["prompt"][0]["content"] for row in rows), trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>")
    made.chat_template = CHAT
    return made


def model_of(tokenizer: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    set_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=8192, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config)


@pytest.fixture(scope="module")
def reward(data: Path) -> Iterator[TritonReward]:
    from evo.cluster.session import ray_session
    from evo.config import ClusterSection

    with ray_session(ClusterSection()):  # a Ray that is there already, as verl has one
        yield TritonReward(PoolSettings(device="cpu", evaluators=1), tasks=str(data / "grpo"))


def trained(reward: TritonReward, tokenizer: Any, data: Path, out: Path, **more: Any) -> tuple[list[dict[str, float]], float]:
    """Two steps; what was logged, and by how much the model changed."""
    import torch
    from datasets import load_dataset
    from trl import GRPOConfig, GRPOTrainer

    rows = load_dataset(str(data / "grpo"), split="train")
    model = model_of(tokenizer)
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    config = GRPOConfig(
        output_dir=str(out), max_steps=2, per_device_train_batch_size=2, num_generations=2, max_completion_length=8, logging_steps=1,
        report_to=[], save_strategy="no", use_cpu=True, learning_rate=1e-2, beta=0.0, disable_tqdm=True,
    )  # fmt: skip
    trainer = GRPOTrainer(model, reward, config, rows, processing_class=tokenizer, **more)
    trainer.train()
    after = torch.nn.utils.parameters_to_vector(trainer.model.parameters()).detach()
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    return logged, float((after.cpu() - before).abs().max())


def test_two_steps_of_what_a_random_model_says(reward: TritonReward, tokenizer: Any, data: Path, tmp_path: Path) -> None:
    logged, _ = trained(reward, tokenizer, data, tmp_path)
    assert len(logged) == 2
    for entry in logged:
        assert (entry["reward"], entry["rewards/triton_reward/mean"]) == (0.0, 0.0)
        assert (entry["triton/judged"], entry["triton/rule"]) == (1.0, 0.0)


def test_two_steps_of_a_right_and_a_wrong_kernel_move_the_model(
    reward: TritonReward, tokenizer: Any, data: Path, tmp_path: Path
) -> None:
    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        replies = [reply_of(BETTER), reply_of(WRONG)]
        return {
            "prompt_ids": [tokenizer.apply_chat_template(prompt, return_dict=False) for prompt in prompts],
            "completion_ids": [tokenizer(replies[place % 2])["input_ids"] + [1] for place in range(len(prompts))],
            "logprobs": None,
        }

    logged, moved = trained(reward, tokenizer, data, tmp_path, rollout_func=rollout)
    assert len(logged) == 2
    for entry in logged:
        assert entry["reward"] == pytest.approx(0.25), "a half for the right one, without a GPU, and nothing for the wrong one"
        assert (entry["triton/judged"], entry["triton/rule"], entry["triton/correct"]) == (1.0, 1.0, 0.5)
        assert entry["frac_reward_zero_std"] == 0.0
    assert moved > 1e-4


def test_sft_and_preference_data_are_what_their_trainers_take(tokenizer: Any, data: Path, tmp_path: Path) -> None:
    from datasets import load_dataset
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    common: dict[str, Any] = {
        "max_steps": 1, "per_device_train_batch_size": 1, "report_to": [], "save_strategy": "no", "use_cpu": True, "max_length": 8192,
        "disable_tqdm": True, "logging_steps": 1,
    }  # fmt: skip
    rows = load_dataset(str(data / "sft"), split="train")
    sft = SFTTrainer(
        model_of(tokenizer), SFTConfig(output_dir=str(tmp_path / "s"), **common), train_dataset=rows, processing_class=tokenizer
    )
    sft.train()
    pairs = load_dataset(str(data / "preference"), split="train")
    dpo = DPOTrainer(
        model_of(tokenizer),
        ref_model=model_of(tokenizer),
        args=DPOConfig(output_dir=str(tmp_path / "d"), **common),
        train_dataset=pairs,
        processing_class=tokenizer,
    )
    dpo.train()
    assert any("loss" in entry for entry in sft.state.log_history)
    assert any("loss" in entry for entry in dpo.state.log_history)


def test_verl_asks_the_same_evaluators(reward: TritonReward) -> None:
    found = compute_score("triton-evolve", reply_of(BETTER), "softmax", {"shown": [SOFTMAX]}, device="cpu", evaluators=1)
    assert (found["score"], found["judged"], found["measured"]) == (0.5, 1.0, 0.0)
    import ray

    names = [item["name"] for item in ray.util.list_named_actors(all_namespaces=True) if item["name"].startswith("judging-")]
    assert len(names) == 1


def test_an_evaluator_that_is_killed_is_replaced(reward: TritonReward) -> None:
    import ray

    (named,) = [item for item in ray.util.list_named_actors(all_namespaces=True) if item["name"].startswith("judging-")]
    ray.kill(ray.get_actor(named["name"], namespace=named["namespace"]), no_restart=True)
    assert reward(["p"], [reply_of(BETTER)], task=["softmax"]) == [0.5]
