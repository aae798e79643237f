"""Records what transformers makes of our templates: `python record.py` in an environment that has it (5.23.0 did).

Each case of cases.json is rendered with each template of this folder; what transformers says goes to rendered.json.
Where our API takes more than transformers does (JSON strings as arguments, text parts for any template), a case says in
`for_transformers` what it amounts to.
"""

import datetime
import json
from pathlib import Path
from unittest import mock

import tokenizers
import transformers
from transformers.utils import chat_template_utils

HERE = Path(__file__).parent


class Clock(datetime.datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz=None):
        return cls(2025, 3, 4, 5, 6, 7)


def render(template: str, config: dict, case: dict) -> dict:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **config)
    options = dict(case.get("template_kwargs", {}))
    if case.get("continue_final_message"):
        options["continue_final_message"] = True
    try:
        text = tokenizer.apply_chat_template(
            case.get("for_transformers", case["messages"]),
            tools=case.get("tools"),
            chat_template=template,
            add_generation_prompt=case.get("add_generation_prompt", True),
            tokenize=False,
            **options,
        )
    except Exception as error:  # a template may raise anything; that it refuses is the fact to record
        return {"error": str(error)}
    return {"text": text}


def applies(case: dict, template: str) -> bool:
    return template in case.get("only", [template]) and template not in case.get("except", [])


def main() -> None:
    given = json.loads((HERE / "cases.json").read_text("utf-8"))
    with mock.patch.object(chat_template_utils, "datetime", Clock):
        rendered = {
            file.stem: {
                name: render(file.read_text("utf-8"), given["config"], case)
                for name, case in given["cases"].items()
                if applies(case, file.stem)
            }
            for file in sorted(HERE.glob("*.jinja"))
        }
    result = {"transformers": transformers.__version__, "rendered": rendered}
    (HERE / "rendered.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
