"""`tokencredit chat`: send text to a model and stream its answer."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from tokencredit.commands.eval_settings import is_run, refuse_custom_task, stored_layer
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

COMMANDS = "/new starts a new conversation, /quit exits"
MAX_NEW_TOKENS = 256
"""Length limit of an answer if the model is not a run."""


class ChatOptions(Frozen):
    """Chat with a model.

    A run receives each text in the prompt format of its training, without history. A model with a chat template keeps the conversation.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|MODEL")]
    """A run folder (its best checkpoint), a shipped base, smollm2, a model folder, or a hub id."""
    ask: str | None = None
    """Send this text, print the answer and exit."""
    raw: bool = False
    """Send the text unchanged: no chat template, no examples, no configuration of the run."""
    system: str | None = None
    """System message; for plain text, the first lines of the prompt. Default: that of the run."""
    temperature: NonNegative = 0.0
    """Sampling temperature; 0 is greedy."""
    max_new_tokens: CountOrZero = 0
    """Length limit of an answer; 0: the limit of the run, else 256."""
    seed: CountOrZero = 0
    """Seed of the sampling."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Precision of the forward passes."""
    trust_remote_code: bool = False
    """Execute Python code from the model folder. The configuration of a run cannot switch this on."""


def run(arguments: Sequence[str]) -> int:
    options = tyro.cli(ChatOptions, args=list(arguments), prog="tokencredit chat")
    model_folder(options.model)
    config = resolve([stored_layer(options.model)]) if is_run(options.model) and not options.raw else None
    if options.raw and options.system is not None:
        raise ConfigError("system is set, but --raw sends the text unchanged; leave one of them out")
    from tokencredit.rollout.stream import Conversation

    policy = _policy(options, config)
    conversation = Conversation(policy, remembers=config is None and policy.prompting.chat)
    limit = options.max_new_tokens or (MAX_NEW_TOKENS if config is None else config.sampling.max_new_tokens)
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
    """Load the model with its prompting. torch is imported here, not at the top of the module."""
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
        refuse_custom_task(options.model, config, instead="chat does not run it to make the examples; use --raw")
    # Without few-shot examples the task is not needed, and its files may be gone.
    task = TASKS[config.task.type](**as_kwargs(config.task)) if config.prompt.few_shot else Steps()
    # Excludes the same rows as the run did, so that the examples are the same.
    check_gold(task, RunDir(Path(options.model)))
    return with_prompting(policy, config, task)


def _framed(text: str, config: TrainConfig | None) -> str:
    """The text inside the question template of the run's task, if it has one."""
    template: Any = None if config is None else getattr(config.task, "template", None)
    return template.replace("{question}", text) if isinstance(template, str) and "{question}" in template else text


def _lines(conversation: "Conversation", model: str) -> Iterator[str]:
    """The lines that the user types, until /quit or the end of input."""
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
            print("This line is not valid UTF-8.")
            continue
        if text == "/quit":
            return
        if text == "/new":
            conversation.start_over()
        elif text.startswith("/"):
            print(f"Unknown command {sanitize(text[:60])}: {COMMANDS}.")
        elif text:
            yield text


def _answer(conversation: "Conversation", text: str, options: ChatOptions, limit: int, *, turn: int) -> None:
    """Print the answer while it is sampled. Ctrl-C stops the answer, not the conversation."""
    from tokencredit.rollout.stream import stream

    prompt = conversation.ask(text)
    answer, printed = "", 0
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
            answer += piece
            text_now = _shown(answer)
            print(text_now[printed:], end="", flush=True)
            printed = len(text_now)
    except KeyboardInterrupt:
        if options.ask is not None:
            raise
    print()
    conversation.heard(text, answer)


def _shown(text: str) -> str:
    """Sanitize each line. A prefix of the text gives a prefix of the result, so that an answer can be printed piece by piece."""
    return "\n".join(sanitize(line) for line in text.split("\n"))
