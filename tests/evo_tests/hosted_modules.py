"""Modules for hosted evaluation that fail or cheat in a way each, made of the good one of `hosted_task`."""

from __future__ import annotations

from tests.evo_tests.hosted_task import GOOD

_BODY = '    kernel[(rows,)](x, lengths, y, columns, longest, BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"])\n'
assert _BODY in GOOD

WRONG = GOOD.replace("mask=at < length", "mask=at < length - 1")
LIBRARY = GOOD.replace("    return y\n", "    return torch.add(y, y) / 2\n")
NO_KERNEL = GOOD.replace(_BODY, "    y.fill_(0.0)\n")
CHANGES_ITS_INPUT = GOOD.replace("    return y\n", "    x[0, 0].fill_(7.0)\n    return y\n")
WRITES_BEHIND_ITS_INPUT = GOOD.replace(
    "    return y\n", "    torch.as_strided(x, (4,), (1,), x.storage_offset() + x.numel() + 8).fill_(7.0)\n    return y\n"
)
HANGS = GOOD.replace("    return y\n", "    while True:\n        pass\n")
EXITS = GOOD.replace("    return y\n", "    import os\n    os._exit(0)\n")
TOO_LARGE = GOOD.replace(
    "    return y\n", "    raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')\n"
)
RAISES = GOOD.replace("    return y\n", "    raise ValueError('no')\n")
ANOTHER_SHAPE = GOOD.replace("    return y\n", "    return y.unsqueeze(0)\n")
RETURNS_ITS_INPUT = GOOD.replace("    return y\n", "    return x[:, 0]\n")
RETURNS_ONE_BUFFER_TWICE = GOOD.replace("    return y\n", "    return y, y\n")
RETURNS_A_NUMBER = GOOD.replace("    return y\n", "    return y.tolist()\n")
RANDOM = GOOD.replace("    return y\n", "    import random\n    y[0].fill_(random.random())\n    return y\n")

REMEMBERS = (
    GOOD
    + """
_first = []
_entry = entry

def entry(x, lengths):
    y = _entry(x, lengths)
    if not _first:
        _first.append(y)
    return _first[0].clone()
"""
)
"""Answers every call with its first answer, and launches a kernel for show."""

LATER = (
    GOOD
    + """
import threading
import time

_entry = entry
_calls = []

def entry(x, lengths):
    _calls.append(1)
    if len(_calls) <= %d:
        return _entry(x, lengths)
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)

    def work():
        time.sleep(0.5)
        y.copy_(_entry(x, lengths))

    threading.Thread(target=work).start()
    return y
"""
)
"""Returns at once after so many calls, and lets a thread do the work."""

SPEAKS_FOR_THE_PROCESS = (
    GOOD
    + """
import json
import os
import stat

def _say(text):
    data = len(text).to_bytes(8, "little") + text
    for descriptor in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, data)
        except OSError:
            pass

_entry = entry

def entry(x, lengths):
    _say(%r)
    return _entry(x, lengths)
"""
)
"""Writes an answer of its own into every socket it finds."""

DESCRIBES = (
    GOOD
    + """
import evo.evaluation.hosted_child as child

child.description_of = lambda tensor: %r
"""
)
"""Describes its outputs as it likes."""

PLACES_LATER = (
    GOOD
    + """
import threading
import time

import evo.evaluation.hosted_child as child

_place = child._Served._place
_calls = []

def _late(served, number, result, mutated, gradients):
    _calls.append(1)
    if len(_calls) <= %d:
        return _place(served, number, result, mutated, gradients)
    y = result.clone()
    result.zero_()
    _place(served, number, result, mutated, gradients)

    def work():
        time.sleep(0.5)
        result.copy_(y)
        _place(served, number, result, mutated, gradients)

    threading.Thread(target=work).start()

child._Served._place = _late
"""
)
"""Hands its outputs over after it has answered, from so many calls on."""
