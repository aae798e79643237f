"""Flags of other programs' verbs that mean something of one verb alone, each with its reason or our name for it."""

import shlex

from jaxinfer.cli.foreign_bench import AS_IT_IS

_ONE_SERVER = "one server is stopped at a time: `jaxinfer stop SERVER`, as `jaxinfer ps` shows them"
_UNTIL_ANSWERED = "running answers are finished first, for as long as --drain-timeout-s of `jaxinfer serve` says"
_CHAT = "without a PROMPT `jaxinfer run MODEL` is a chat, and `jaxinfer chat MODEL` always is"
_TEXT_ONLY = "not yet: text only, no images, audio or video"
_OF_ANSWERS = (
    ("use --system", "-sys --system-prompt"),
    ('use --system "$(cat FILE)"', "-sysf --system-prompt-file"),
    (_TEXT_ONLY, "--image --images --audio --video"),
)
# reason: flags, by verb
_OF_VERBS: dict[str, tuple[tuple[str, str], ...]] = {
    "run": (
        *_OF_ANSWERS,
        (_CHAT, "-cnv --conversation -i --interactive -it --interactive-first"),
        ("pipe it in: `jaxinfer run MODEL < FILE`", "-f --file --prompt-file"),
        (AS_IT_IS, "-no-cnv --no-conversation -st --single-turn"),
    ),
    "chat": (
        *_OF_ANSWERS,
        (AS_IT_IS, "-cnv --conversation -i --interactive -it --interactive-first"),
        ('not needed: lines between """ and """ are one message', "--multiline -mli --multiline-input"),
        ("pipe it in: `jaxinfer chat MODEL < FILE`, a message a line", "-f --file --prompt-file"),
    ),
    "rm": (("use --yes", "-f --force"),),
    "ps": (
        (AS_IT_IS, "-a --all"),
        ("not yet: no JSON here; a server's own is at /api/ps and /metrics", "--json --format -o"),
    ),
    "list": (
        (AS_IT_IS, "-a --all"),
        ("not yet: no JSON here; a server's models are at /v1/models", "--json --format -o"),
    ),
    "show": (("not yet: no JSON here; config.json is in the folder that it shows", "--json --format -o"),),
    "batch": (
        (
            "batch loads an engine of its own; a server answers files sent to /v1/files and /v1/batches, and "
            "`jaxinfer run --url URL` asks it one prompt",
            "--url --base-url --server --host --port",
        ),
    ),
    "plan": (("use --for{value}", "--gpu --card --hardware --gpu-type --gpu-name"),),
    "stop": (
        (_ONE_SERVER, "--all -a"),
        (_UNTIL_ANSWERED, "--timeout -t --time --force -f --now -9"),
    ),
}


def verb_reason(flag: str, value: str, verb: str) -> str | None:
    """What a verb says of a flag; None for one that means nothing of this verb alone.    value: what follows it."""
    found = next((reason for reason, flags in _OF_VERBS.get(verb, ()) if flag in flags.split()), None)
    given = "" if not value or value.startswith("-") else f" {shlex.quote(value)}"
    return found.replace("{value}", given) if found else None
