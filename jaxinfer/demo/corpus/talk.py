"""Greetings, thanks, and questions about jaxinfer: fixed answers to many ways of asking."""

import random

from jaxinfer.demo.corpus import words
from jaxinfer.demo.corpus.turn import Case, Phrasings, Turn, say, verbatim
from jaxinfer.demo.corpus.words import Split, listed

REAL_MODEL = "jaxinfer serve Qwen/Qwen3-0.6B"
SKILLS = (
    "greet, add numbers from 0 to 99, count, spell, repeat, tell tiny stories, turn a sentence into JSON, call tools "
    "and explain jaxinfer"
)

GREETINGS: tuple[tuple[str, Phrasings], ...] = (
    (
        "Hello! I am the demo model of jaxinfer. What can I do for you?",
        Phrasings(
            train=listed(
                """Hello|Hello!|Hi|Hi!|Hi there|Hey|Hey!|Hey there!|Hello there|Good day|Greetings|Hello, friend|
                Hi, bot|
                hello model|Hello, computer|Hi jaxinfer|Hello jaxinfer!|Hallo|Yo|Howdy|Hello hello|
                Greet me|Hello, are you there?|Is anyone there?|Hello, anybody home?|Hey you|hi, nice to meet you"""
            ),
            heldout=("Hey there, model!", "Hi, hello!", "Hey jaxinfer", "Good day to you!", "hello, model of mine",
            "Hi, computer!"),
        ),
    ),
    (
        "Good morning! What can I do for you?",
        Phrasings(("Good morning", "Good morning!", "Morning!", "Good morning, jaxinfer"), ("Good morning to you!",)),
    ),
    (
        "Good evening! What can I do for you?",
        Phrasings(("Good evening", "Good evening!", "Evening!", "Good evening, jaxinfer"), ("Good evening to you!",)),
    ),
    (
        "I am well, thank you. What can I do for you?",
        Phrasings(
            (
                "How are you?",
                "How are you doing?",
                "How are you today?",
                "Hi, how are you?",
                "Hello, how are you?",
                "Are you well?",
                "How do you do?",
                "How is it going?",
                "What's up?",
                "Everything fine?",
            ),
            ("Hey, how are you?", "Hello! How are you today?", "How are you, jaxinfer?"),
        ),
    ),
    (
        "You are welcome!",
        Phrasings(
            ("Thanks", "Thank you", "Thank you!", "Thanks a lot!", "Many thanks", "Thank you very much.",
             "Great, thanks!",
             "Nice, thank you", "ok thanks", "Well done!", "Good job", "Perfect, thanks."),
            ("Thanks so much!", "Thank you so much!", "Great, thank you!"),
        ),
    ),
    (
        "Goodbye! Come back soon.",
        Phrasings(
            ("Bye", "Goodbye", "Bye bye", "See you", "See you later!", "Good night", "Farewell", "I have to go, bye",
             "That is all, goodbye", "Bye, see you tomorrow"),
            ("Goodbye then!", "Bye, jaxinfer!", "See you soon!"),
        ),
    ),
)  # fmt: skip

NAMED = Phrasings(
    ("My name is {name}.", "I am {name}.", "Hi, I am {name}.", "Hello, my name is {name}.", "Hey, I'm {name}!",
     "I'm {name}.",
     "They call me {name}.", "{name} here."),
    ("Hi, my name is {name}.", "Hello! I am {name}.", "Hey, my name is {name}!"),
)  # fmt: skip

_WHAT_IS = Phrasings(
    train=(
        "What is {term}?",
        "What's {term}?",
        "what is {term}",
        "Explain {term}.",
        "Please explain {term}.",
        "Can you explain {term}?",
        "Explain {term} to me.",
        "What does {term} mean?",
        "Tell me about {term}.",
        "Define {term}.",
        "What do you mean by {term}?",
        "Do you know what {term} is?",
        "{term}?",
        "I do not understand {term}.",
        "Describe {term}.",
    ),
    heldout=("Could you explain {term}?", "Please tell me what {term} is.", "Help me understand {term}.",
    "What is {term}, please?"),
)  # fmt: skip

TERMS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("jaxinfer is an inference engine and server for open language models, written in JAX. It speaks the OpenAI API.",
     ("jaxinfer", "the jaxinfer project", "this project")),
    ("A KV page holds the keys and values of a few tokens in every layer. Sequences own pages, so memory is never "
     "wasted on room that nobody uses.", ("a KV page", "a page", "the KV cache", "KV cache", "KV pages", "paging")),
    ("Prefix caching keeps the KV pages of a finished prompt. A later prompt that begins with the same tokens uses "
     "them again and starts sooner.", ("prefix caching", "the prefix cache", "a prefix cache", "a prefix hit")),
    ("Continuous batching lets a new request join the running batch at every step, "
     "so nobody waits for the slowest one.",
     ("continuous batching", "batching", "a batch")),
    ("Prefill computes the keys and values of the prompt, many tokens at once.", ("prefill", "the prefill",
     "prefilling")),
    ("Chunked prefill splits a long prompt over several steps, so the others keep getting their tokens.",
     ("chunked prefill", "a prefill chunk")),
    ("Decode makes one new token for each running sequence. It is bound by memory speed.", ("decode", "decoding",
     "a decode step")),
    ("Paged attention reads the keys and values of a sequence from pages scattered over memory.",
     ("paged attention", "attention over pages")),
    ("Preemption takes the pages from the newest sequence when memory runs out. It is computed again "
     "later, and no token is lost.",
     ("preemption", "a preempted sequence", "preempting")),
    ("The scheduler chooses at each step which sequences get how many tokens and which pages.", ("the scheduler",
     "scheduling")),
    ("A token is a piece of text: a word, a part of one, or a sign. Models read and write tokens.", ("a token",
     "tokens")),
    ("A tokenizer cuts text into tokens and puts them together again.", ("a tokenizer", "the tokenizer",
     "tokenization")),
    ("Temperature says how bold the choice of the next token is. At 0 the likeliest token always wins.",
     ("temperature", "the temperature", "the sampling temperature")),
    ("With top_p only the likeliest tokens that together reach this probability may be chosen.", ("top_p", "top p",
     "nucleus sampling")),
    ("With top_k only the k likeliest tokens may be chosen.", ("top_k", "top k")),
    ("Greedy decoding always takes the likeliest token, so the same prompt gives the same answer.",
     ("greedy decoding", "greedy sampling")),
    ("Streaming sends each piece of the answer as soon as it is there.", ("streaming", "a streamed answer",
     "token streaming")),
    ("A chat template turns a list of messages into the text that the model was trained on.", ("a chat template",
     "the chat template")),
    ("JAX is a Python library for fast arrays. It compiles functions for the GPU with XLA.", ("JAX", "jax")),
    ("XLA is the compiler that turns JAX functions into fast programs for the device.", ("XLA", "the XLA compiler")),
    ("safetensors is a simple, safe file format for the weights of a model.", ("safetensors", "a safetensors file")),
    ("A bucket is a padded size that jaxinfer compiles before it is ready, so that nothing is compiled later.",
     ("a bucket", "buckets", "a bucket in jaxinfer")),
    ("Time to first token is how long you wait until the answer begins.", ("time to first token", "TTFT", "ttft")),
    ("A stop string ends the answer as soon as the model writes it.", ("a stop string", "stop strings",
     "a stop sequence")),
    ("A context window is how many tokens the prompt and the answer may have together.",
     ("a context window", "the context length", "max_model_len", "the context window")),
    ("A checkpoint is a folder with the weights, the tokenizer and the settings of a model.", ("a checkpoint",
     "the demo checkpoint")),
    ("Speculative decoding lets a small model guess some tokens, and the large model checks them all at once.",
     ("speculative decoding", "speculation")),
    ("Quantization stores weights with fewer bits, so that they take less memory.", ("quantization",
     "a quantized model")),
)  # fmt: skip

QUESTIONS: tuple[tuple[str, Phrasings], ...] = (
    (
        f"I am the demo model of jaxinfer, a very small one. For a real model run: {REAL_MODEL}",
        Phrasings(
            ("Who are you?", "What are you?", "What is your name?", "What's your name?", "Introduce yourself.",
             "Who is this?",
             "Which model are you?", "What model is this?", "Are you a robot?", "Are you a human?",
             "Are you ChatGPT?", "Are you Qwen?",
             "Are you an AI?", "Tell me about yourself.", "Describe yourself.", "Are you the demo model?",
             "Am I talking to a person?",
             "Who am I talking to?", "what model am I using", "Say who you are.", "Tell me what you are.",
             "Are you a real person?",
             "Are you a machine?", "Are you a model?", "Is this a person or a model?", "I want to know who you are."),
            ("Hi, who are you?", "Please introduce yourself.", "Which model is this?", "Are you a person?",
             "Tell me who you are."),
        ),
    ),
    (
        f"I can {SKILLS}. For anything else run: {REAL_MODEL}",
        Phrasings(
            ("What can you do?", "What can you do for me?", "Help", "Help!", "help me", "How can you help me?",
             "What do you know?",
             "What are you good at?", "What can I ask you?", "What should I ask?", "List your skills.",
             "Show me what you can do.",
             "Can you help me?", "What are your abilities?", "What can this model do?", "Are you useful?",
             "What more can you do?", "Is there anything else you can do?",
             "Say what you can do.", "What do you do?", "Which things can you do?", "What other things can you do?"),
            ("Hi, what can you do?", "What else can you do?", "Tell me what you can do.", "What are your skills?"),
        ),
    ),
    (
        f"Run this: {REAL_MODEL}",
        Phrasings(
            ("How do I run a real model?", "How do I serve a real model?", "How can I use a bigger model?",
             "How do I load Qwen3?",
             "How do I serve Qwen?", "Which command serves a real model?", "How do I start a real model?",
             "How do I get a better model?",
             "Can I use another model?", "How do I change the model?", "How do I serve my own model?",
             "Give me a smarter model."),
            ("How can I serve a real model?", "How do I use a real model?", "Which command starts a bigger model?",
             "How do I run a better model?"),
        ),
    ),
    (
        "jaxinfer serves Qwen2, Qwen2.5, Qwen3, Llama 3 and the DeepSeek-R1 distills of Qwen and Llama.",
        Phrasings(
            ("Which models does jaxinfer support?", "What models can jaxinfer serve?", "Does jaxinfer support Llama?",
             "Does jaxinfer run Qwen?", "Which models can I use?", "What models are supported?",
             "Can jaxinfer serve DeepSeek?",
             "List the supported models.", "Which models run on jaxinfer?", "What can jaxinfer serve?",
             "Can jaxinfer run Llama?", "Are Qwen models supported?", "Which models can be served?"),
            ("Which models does jaxinfer serve?", "What models does jaxinfer support?", "Does jaxinfer support Qwen?"),
        ),
    ),
    (
        "I was trained by the jaxinfer project, on texts that its own generator wrote.",
        Phrasings(
            ("Who made you?", "Who trained you?", "How were you trained?", "What were you trained on?",
             "Who built you?",
             "Where do you come from?", "Who created you?", "What is your training data?", "Do you know who made you?",
             "Say who made you.", "Who was it that made you?", "Tell me who trained you.",
             "What texts were you trained on?",
             "Which data were you trained on?"),
            ("Who has made you?", "What data were you trained on?", "Tell me who made you."),
        ),
    ),
    (
        "I have about five million parameters. That is tiny.",
        Phrasings(
            ("How big are you?", "How many parameters do you have?", "How large are you?", "What size are you?",
             "Are you a big model?",
             "How small are you?", "How many parameters does the model have?", "How big is the model?",
             "Is this a big model?",
             "How many parameters?", "What is your size?"),
            ("How many parameters does this model have?", "How big is this model?"),
        ),
    ),
    (
        "Yes. jaxinfer needs no GPU, but it is much faster with one from NVIDIA.",
        Phrasings(
            ("Does jaxinfer run on a CPU?", "Can I use jaxinfer without a GPU?", "Do I need a GPU?",
             "Does jaxinfer need a GPU?",
             "Does it work without a GPU?", "Can jaxinfer run on my laptop?", "Is a GPU needed?",
             "Will jaxinfer work on a CPU?", "Can I serve without a GPU?"),
            ("Can I run jaxinfer without a GPU?", "Does jaxinfer work on a CPU?"),
        ),
    ),
    (
        "The server answers at http://127.0.0.1:8000/v1, as the OpenAI API does.",
        Phrasings(
            ("Where is the API?", "How do I call the API?", "What is the URL of the API?",
             "Does jaxinfer have an OpenAI API?",
             "How do I use the OpenAI client?", "Which port does the server use?", "How do I call the server?",
             "What is the address of the server?",
             "Where does the API answer?", "Where is the server?", "Give me the address of the API.",
             "What is the API URL?"),
            ("What is the address of the API?", "How can I call the API?"),
        ),
    ),
    (
        "jaxinfer is free software under the Apache License 2.0.",
        Phrasings(
            ("What licence does jaxinfer have?", "Is jaxinfer free?", "Is jaxinfer open source?",
             "What is the license of jaxinfer?",
             "Which license does jaxinfer use?", "Is it free software?", "Is jaxinfer open software?",
             "Can I use jaxinfer for free?", "What does jaxinfer cost?", "Under which license is jaxinfer?"),
            ("Which licence does jaxinfer have?", "Is jaxinfer free software?"),
        ),
    ),
    (
        "Type: jaxinfer chat",
        Phrasings(
            ("How do I chat in the terminal?", "How do I start a chat?", "How do I chat with a model?",
             "Which command starts a chat?"),
            ("How can I chat in the terminal?", "Which command opens a chat?"),
        ),
    ),
)  # fmt: skip


_ADDRESSED = listed(
    """, my friend|, friend|, model|, bot|, computer|, dear model|, little one|, old friend| everybody| to all of you|
    to you, my friend| to you all| again|, again| then| for now| and thanks|, jaxinfer|, sir|, dear| my dear|
    once more|, you there| from me| to my friend|, machine"""
)


def greetings(rng: random.Random, split: Split, case: Case) -> Turn:
    """Hello, thanks, goodbye; and a name that is given back."""
    if rng.random() < 0.3:
        user, (name,) = say(rng, NAMED.pick(rng, split).format(name=verbatim(words.name(rng, split))), case)
        return Turn("greetings", user, f"Nice to meet you, {name}!", f"{name} says who they are, so I greet them.")
    answer, phrasings = rng.choices(GREETINGS, (6, 1, 1, 2, 2, 2))[0]
    text = phrasings.pick(rng, split)
    if split == "train" and rng.random() < 0.35:
        text = phrasings.unless_heldout(_addressed(rng, text), text)
    user, _ = say(rng, text, case)
    return Turn("greetings", user, answer, "I answer politely.")


def _addressed(rng: random.Random, text: str) -> str:
    """`Good morning!` to `Good morning, old friend!`"""
    end = text[-1] if text[-1] in ".?!" else ""
    whom = rng.choice(_ADDRESSED) if rng.random() < 0.8 else f", {words.name(rng, 'train')}"
    return text.rstrip(".?!") + (whom if whom[0] == "," else f" {whom}") + end


def about_jaxinfer(rng: random.Random, split: Split, case: Case) -> Turn:
    """Who are you, what is a KV page, how do I serve a real model."""
    if rng.random() < 0.5:
        answer, phrasings = rng.choice(QUESTIONS)
        text = phrasings.pick(rng, split)
    else:
        answer, terms = rng.choice(TERMS)
        text = _WHAT_IS.pick(rng, split).format(term=rng.choice(terms))
    user, _ = say(rng, text, case)
    return Turn("about jaxinfer", user, answer, "This is about jaxinfer, so I know it.")
