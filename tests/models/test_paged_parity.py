"""The engine's paged path against Hugging Face transformers: extend and decode steps over pages, sequences together."""

import numpy as np
import pytest

from jaxinfer.config import ExtendBucket
from tests.support.golden_models import MODELS, NUM_GREEDY, GoldenModel
from tests.support.paged_logits import compute
from tests.support.parity import answers, check, load, long_answers

QUICK = {"qwen3_tied"}  # compiling one takes seconds


@pytest.mark.parametrize(
    "model", [pytest.param(m, id=m.name, marks=() if m.name in QUICK else pytest.mark.slow) for m in MODELS]
)
def test_prompts_of_5_to_600_tokens_computed_together_are_answered_as_by_transformers(model: GoldenModel) -> None:
    config, params = load(model)
    wanted = [*answers(model).values(), *long_answers(model)]
    prompts = [answer.prompt for answer in wanted]
    for answer, computed in zip(wanted, compute(config, params, prompts, NUM_GREEDY), strict=True):
        check(answer, config, params, lambda *_, computed=computed: computed.logits)
        np.testing.assert_array_equal(computed.output, answer.greedy)


@pytest.mark.slow
@pytest.mark.parametrize("run_ahead", [0, 1])
def test_a_whole_prompt_in_one_step_is_answered_as_by_transformers(run_ahead: int) -> None:
    model = next(model for model in MODELS if model.name == "qwen3_yarn_attn_factor")
    config, params = load(model)
    answer = answers(model)[300]
    (computed,) = compute(
        config,
        params,
        [answer.prompt],
        NUM_GREEDY,
        max_num_batched_tokens=320,
        extend_buckets=(ExtendBucket(320, 1, 1),),
        decode_buckets=(1,),
        max_num_seqs=1,
        run_ahead=run_ahead,
    )
    check(answer, config, params, lambda *_: computed.logits)
    np.testing.assert_array_equal(computed.output, answer.greedy)
