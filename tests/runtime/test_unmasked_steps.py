"""Grammars cost nothing where there are none: such steps are the same programs to the byte, whoever else uses them."""

import dataclasses
import functools
import itertools

import pytest

from jaxinfer.runtime.plan import Plan, Sampler, Sampling
from jaxinfer.runtime.programs import Draw, Helper, Key, Mask
from jaxinfer.runtime.runner import DeviceRunner
from tests.support.masks import new_masks
from tests.support.tiny_runner import GREEDY, TINY, Driven, generate, make_runner

PROMPT = [5, 6, 7, 8]
MASKED = Sampling(temperature=1.0, seed=3, masked=True)


def use_grammars(runner: DeviceRunner) -> list[int]:
    """Some tokens of a sequence that is masked, in a slot of its own."""
    held = Driven(9, list(PROMPT), itertools.count(60), MASKED)
    for token in (9, 40, 96):
        row = held.row()
        row.masked = True
        pending = runner.run(Plan([row]))
        pending.draw(new_masks({token}, vocab_size=TINY.vocab_size))
        held.take(pending.wait(), 0)
    return held.tokens[len(PROMPT) :]


def watched(monkeypatch: pytest.MonkeyPatch, runner: DeviceRunner) -> list[Key]:
    """What it dispatches from here on."""
    keys: list[Key] = []
    dispatch = runner._dispatch

    def recorded(key: Key, *rest: object, **options: object) -> object:
        keys.append(key)
        return dispatch(key, *rest, **options)

    monkeypatch.setattr(runner, "_dispatch", recorded)
    return keys


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.0, seed=3)], ids=["greedy", "drawn"])
def test_a_step_without_grammars_is_the_same_whether_others_use_them(sampling, monkeypatch):
    found = []
    for grammars in (False, True):
        runner = make_runner()
        keys = watched(monkeypatch, runner)
        if grammars:
            assert use_grammars(runner) == [9, 40, 96]
            assert (
                Helper.SET_SLOT not in keys and Helper.SET_MASKS in keys and any(isinstance(key, Mask) for key in keys)
            )
        keys.clear()
        for key, program in runner._programs.items():  # or JAX would hand out what it compiled for another
            runner._programs[key] = dataclasses.replace(program, function=functools.partial(program.function))
        runner._executables.clear()
        tokens = generate(runner, PROMPT, 6, sampling)
        texts = {key: runner._executables[key].as_text() for key in keys}
        found.append((tokens, list(keys), texts))
        assert not any(isinstance(key, Mask) or key in (Helper.SET_SLOT, Helper.SET_MASKS) for key in keys)
        assert not any(
            isinstance(key, Draw) and (key.sampler is not Sampler.WIDE or sampling is GREEDY) for key in keys
        )
        runner.close()
    assert found[0] == found[1]
    assert len(found[0][2]) >= 2 and all(found[0][2].values())
