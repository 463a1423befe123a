"""The columns of each format: name, type, meaning. Writers, readers and the data card take them from here.

The first columns are what TRL documents for a format: conversational prompt and completion; prompt, chosen and rejected; prompt with
columns for rewards. For GRPO, verl's columns stand beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Format(StrEnum):
    """What a data set is for."""

    SFT = "sft"
    PREFERENCE = "preference"
    GRPO = "grpo"


class Kind(StrEnum):
    """Types of columns; a number or a text may be null where it says so."""

    TEXT = "text"
    TEXTS = "list of texts"
    NUMBER = "number"
    MESSAGES = "messages"
    CASES = "list of cases"
    REWARD_MODEL = "style and ground_truth"
    EXTRA = "object"


@dataclass(frozen=True)
class Column:
    """One column."""

    kind: Kind
    meaning: str


_T, _TS, _N, _M = Kind.TEXT, Kind.TEXTS, Kind.NUMBER, Kind.MESSAGES

_WHERE = {
    "task": Column(_T, "name of the task, or path of its file from here"),
    "kind": Column(_T, "kernel kind of the task"),
    "target": Column(_T, "what kernels are compiled for"),
    "triton": Column(_T, "version of Triton"),
    "ask": Column(_T, "generate: from the reference alone; improve: a parent that is right; repair: one that failed"),
    "licence": Column(_T, "of the task and what is derived from it, as an SPDX identifier"),
    "run": Column(_T, "name of the run"),
}

_PARENT = {
    "parents": Column(_TS, "ids of the variants that the request was given"),
    "parent_status": Column(_T, "verdict on the first parent; empty without one"),
    "parent_message": Column(_T, "error evidence of a failed parent"),
    "parent_speedup": Column(_N, "of the first parent over the baseline; null unless it passed"),
}

_ANSWER = {
    "variant": Column(_T, "id of the variant"),
    "origin": Column(_T, "model, rule, start (written by hand), compiler (torch.compile), tuned (with the best knobs found)"),
    "operator": Column(_T, "what made it"),
    "model": Column(_T, "language model that wrote it; empty for none"),
    "plan_hash": Column(_T, "equal for kernels that launch the same code"),
    "trust": Column(_T, "replayed, hosted, interpreted: how it was judged"),
    "latency_kind": Column(_T, "measured, or modelled: an estimate, no measurement"),
    "device": Column(_T, "what it was judged on"),
    "speedup": Column(_N, "over the run's baseline, geometric mean over cases"),
    "speedup_low": Column(_N, "lower bound of its 95 % interval"),
    "tuned_gain": Column(
        _N, "of a tuned one over the module as it was, by tuning's own timings, without interval; null otherwise"
    ),
    "error_ratio": Column(_N, "worst error as a share of what is allowed"),
    "cases": Column(Kind.CASES, "per case: configuration (JSON), latencies in µs, speedup with its 95 % interval, pairs, error"),
}

_REJECTED = {
    "rejected_variant": Column(_T, "id of the variant"),
    "rejected_origin": Column(_T, "as origin"),
    "rejected_model": Column(_T, "as model"),
    "rejected_status": Column(_T, "its verdict"),
    "rejected_message": Column(_T, "its error evidence; empty where it is right but slower"),
    "rejected_speedup": Column(_N, "null unless it passed"),
}

COLUMNS: Mapping[Format, Mapping[str, Column]] = {
    Format.SFT: {
        "prompt": Column(_M, "what is asked"),
        "completion": Column(_M, "a good answer"),
        **_WHERE,
        **_PARENT,
        **_ANSWER,
    },
    Format.PREFERENCE: {
        "prompt": Column(_M, "what is asked"),
        "chosen": Column(_M, "the better answer"),
        "rejected": Column(_M, "the worse one"),
        **_WHERE,
        **_PARENT,
        **_ANSWER,
        **_REJECTED,
    },
    Format.GRPO: {
        "prompt": Column(_M, "what is asked"),
        **_WHERE,
        "baseline": Column(_T, "module that speed is measured against; empty for the task's tuned starting kernels"),
        "shown": Column(_TS, "modules that the prompt shows as work; they are no answers"),
        "shown_plans": Column(_TS, "their plan hashes"),
        "model": Column(_T, "language model that was asked this; empty for a prompt made here"),
        **_PARENT,
        "data_source": Column(_T, "for verl"),
        "ability": Column(_T, "for verl"),
        "reward_model": Column(Kind.REWARD_MODEL, "for verl; the ground truth is the task"),
        "extra_info": Column(Kind.EXTRA, "for verl: split, index, baseline, shown, shown_plans"),
    },
}
