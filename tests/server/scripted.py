"""A FakeLLM whose answers are texts, through the demo's tokenizer and the text side that real answers go through."""

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

from jaxinfer.checkpoint.resolve import DEMO_FOLDER
from jaxinfer.config import EngineConfig
from jaxinfer.engine.sequence import Output, Request
from jaxinfer.llm.answer import Answer
from jaxinfer.llm.text_side import TextSide, load_text
from jaxinfer.llm.types import Delta
from jaxinfer.protocol.sampling import GenerationDefaults, SamplingParams, resolve_sampling
from jaxinfer.text.reading import Reading
from jaxinfer.text.tools.formats import Format
from jaxinfer.text.tools.reader import ToolUse
from tests.server.fakes import INFO, FakeLLM

EOS, VOCAB_SIZE = 1529, 1536  # <|im_end|>; the demo's


class ScriptedLLM(FakeLLM):
    """Each choice is one of `says`, `piece` tokens at a time, and ends as `finish` says. form: of its calls."""

    def __init__(self, *says: str, piece: int = 1, finish: str = "stop", form: Format = "hermes") -> None:
        self.text: TextSide = load_text(EngineConfig(tool_call_parser=form), DEMO_FOLDER)
        facts = self.text.facts_for(dataclasses.replace(INFO, vocab_size=VOCAB_SIZE))
        super().__init__(tool_format=facts.tool_format, has_thinking=facts.has_thinking)
        self._says, self._piece, self._finish = says, piece, finish

    async def render(self, messages: list[dict[str, Any]], **fields: Any) -> list[int]:
        await super().render(messages, **fields)
        names = ("tools", "add_generation_prompt", "continue_final_message", "template_kwargs")
        chosen = {name: fields[name] for name in names if name in fields}
        return self.text.tokenizer.encode(self.text.template.render(messages, **chosen), add_special_tokens=False)

    def reading(self, prompt_ids: list[int], tools: ToolUse | None, params: SamplingParams) -> Reading | None:
        return self.text.reading(prompt_ids, tools, params)

    async def generate(
        self, prompt_ids: list[int], params: SamplingParams, *, reading: Reading | None = None, **rest: Any
    ) -> AsyncIterator[Delta]:
        sampling = resolve_sampling(params, GenerationDefaults(), random_seed=0)
        request = Request("x", tuple(prompt_ids), 500, n=sampling.n)
        return self._answer(Answer(request, sampling, self.text.tokenizer, lambda _: None, reading), sampling.n)

    async def _answer(self, answer: Answer, num_choices: int) -> AsyncIterator[Delta]:
        for index in range(num_choices):
            ids = self.text.tokenizer.encode(self._says[index % len(self._says)], add_special_tokens=False)
            ids += [EOS] if self._finish == "stop" else []
            for start in range(0, len(ids), self._piece):
                is_last = start + self._piece >= len(ids)
                output = Output("x", index, ids[start : start + self._piece], self._finish if is_last else None)
                if (delta := answer.feed(output)) is not None:
                    yield delta
