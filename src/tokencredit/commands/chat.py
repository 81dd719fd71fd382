"""`tokencredit chat`: put something to a model, and see what it answers as it writes."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from tokencredit.commands.eval_settings import is_run, refuse_own_task, stored_layer
from tokencredit.config import CountOrZero, Frozen, NonNegative, as_kwargs
from tokencredit.config.resolve import resolve
from tokencredit.config.train import TrainConfig
from tokencredit.errors import EXIT_OK, ConfigError
from tokencredit.models import model_folder
from tokencredit.seeds import derive_seed
from tokencredit.storage.run_dir import RunDir
from tokencredit.text import sanitize

if TYPE_CHECKING:
    from tokencredit.policy.policy import Policy
    from tokencredit.rollout.stream import Conversation

COMMANDS = "/new starts over, /quit leaves"
TOKENS = 256
"""Length limit of an answer where no run says how long its responses may be."""


class ChatOptions(Frozen):
    """Talk to a model. To a run the text is put as its prompts were; a model with a chat template remembers what was said."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|MODEL")]
    """A run folder (its best checkpoint), a shipped base, smollm2, a folder, or an id on the hub."""
    ask: str | None = None
    """Put this, print the answer and leave."""
    raw: bool = False
    """Put the text as it is: no chat template, no examples, nothing from the run's configuration."""
    system: str | None = None
    """System message of a chat, or the first lines of plain text; default that of the run."""
    temperature: NonNegative = 0.0
    """0 takes the likeliest token each time."""
    max_new_tokens: CountOrZero = 0
    """Length limit of an answer; 0 takes the run's, else 256."""
    seed: CountOrZero = 0
    """What is drawn follows from it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Precision of the passes."""
    trust_remote_code: bool = False
    """Run Python code that lies in the model's folder. A run folder cannot allow it by itself."""


def run(arguments: Sequence[str]) -> int:
    options = tyro.cli(ChatOptions, args=list(arguments), prog="tokencredit chat")
    model_folder(options.model)
    config = resolve([stored_layer(options.model)]) if is_run(options.model) and not options.raw else None
    if options.raw and options.system is not None:
        raise ConfigError("system is set but --raw puts the text as it is; leave one of them out")
    from tokencredit.rollout.stream import Conversation

    policy = _policy(options, config)
    conversation = Conversation(policy, remembers=config is None and policy.prompting.chat)
    limit = options.max_new_tokens or (TOKENS if config is None else config.sampling.max_new_tokens)
    if options.ask is not None:
        _answer(conversation, _framed(options.ask, config), options, limit, turn=0)
        return EXIT_OK
    for turn, text in enumerate(_lines(conversation, options.model)):
        try:
            _answer(conversation, _framed(text, config), options, limit, turn=turn)
        except ConfigError as problem:
            print(sanitize(str(problem)))
    return EXIT_OK


def _policy(options: ChatOptions, config: TrainConfig | None) -> "Policy":
    """Everything that needs torch is loaded from here on."""
    from dataclasses import replace

    from tokencredit.policy.policy import choose_device, load_policy, set_threads
    from tokencredit.policy.prompting import Prompting, with_prompting
    from tokencredit.tasks import TASKS, Steps
    from tokencredit.trainer.preflight import check_gold

    policy = load_policy(
        options.model,
        device=choose_device(options.device),
        dtype=options.dtype,
        weights="bfloat16" if options.dtype == "bfloat16" else "float32",
        trust_remote_code=options.trust_remote_code,
    )
    set_threads(0, policy.model)
    if config is None:
        chat = not options.raw and policy.tokenizer.chat_template is not None
        return replace(policy, prompting=Prompting(chat=chat, system=options.system))
    if options.system is not None:
        config = config.model_copy(update={"prompt": config.prompt.model_copy(update={"system": options.system})})
    if config.prompt.few_shot:
        refuse_own_task(options.model, config, instead="its examples are not made; use --raw")
    # Without examples the task is not asked for anything, and its files may be gone.
    task = TASKS[config.task.type](**as_kwargs(config.task)) if config.prompt.few_shot else Steps()
    # The same rows are left out as in the run, so that it shows the same examples.
    check_gold(task, RunDir(Path(options.model)))
    return with_prompting(policy, config, task)


def _framed(text: str, config: TrainConfig | None) -> str:
    """As a run's task would have written the question, where it has a template for that."""
    template: Any = None if config is None else getattr(config.task, "template", None)
    return template.replace("{question}", text) if isinstance(template, str) and "{question}" in template else text


def _lines(conversation: "Conversation", model: str) -> Iterator[str]:
    """What a person types, until /quit or the end of it."""
    interactive = sys.stdin.isatty()
    if interactive:
        with suppress(ImportError):
            import readline  # noqa: F401  # arrow keys and history in input()

        print(sanitize(f"{model}: {COMMANDS}."))
    while True:
        try:
            text = input("> " if interactive else "").strip()
        except EOFError:
            return
        except UnicodeDecodeError:
            print("That is no text: it holds bytes that are no characters.")
            continue
        if text == "/quit":
            return
        if text == "/new":
            conversation.start_over()
        elif text.startswith("/"):
            print(f"There is no {sanitize(text[:60])}: {COMMANDS}.")
        elif text:
            yield text


def _answer(conversation: "Conversation", text: str, options: ChatOptions, limit: int, *, turn: int) -> None:
    """Written as it is drawn. Ctrl-C stops an answer, not the conversation."""
    from tokencredit.rollout.stream import stream

    prompt = conversation.ask(text)
    heard, printed = "", 0
    pieces = stream(
        conversation.policy,
        prompt,
        max_new_tokens=min(limit, conversation.room() - len(prompt)),
        temperature=options.temperature,
        seed=derive_seed(options.seed, "chat", turn),
        dtype=options.dtype,
    )
    try:
        for piece in pieces:
            heard += piece
            text_now = _shown(heard)
            print(text_now[printed:], end="", flush=True)
            printed = len(text_now)
    except KeyboardInterrupt:
        if options.ask is not None:
            raise
    print()
    conversation.heard(text, heard)


def _shown(text: str) -> str:
    """Lines stay lines; all else that could steer a terminal is made visible. Of a longer text more is shown, and nothing otherwise."""
    return "\n".join(sanitize(line) for line in text.split("\n"))
