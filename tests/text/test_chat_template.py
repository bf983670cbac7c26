"""Chat templates: rendered as the reference library does, kept through load and save, and no way to run code."""

import gc
import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from checkpoints import vocabulary

from regard.errors import UserError
from regard.text.chat_template import MAX_PROMPT, MAX_TEMPLATE, Template, template_of
from regard.text.tokenizer import Tokenizer
from regard.text.vocabulary import Vocabulary

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
    "messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
    "{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + "
    "'\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
SPREAD = """{{ '=' * 3 }}{{ 2 ** 3 * 1.5 }}
{%- set ns = namespace(found=false, last=loop_is_undefined) -%}
{%- for message in messages %}
    {%- if loop.last or message.role == "user" %}{% set ns.found = true %}{% endif %}
    {%- if not message.content %}{% continue %}{% endif %}
    {{- "<|" ~ message.role ~ "|>\\n" }}
    {% generation %}{{ message["content"] | trim }}{% endgeneration %}

    {{- eos_token }}{{ loop.length }}{{ loop.nextitem.role if loop.nextitem }}
{% endfor -%}
{% if tools is not none %}never{% endif %}
{{ {"a": "<é>", "found": ns.found} | tojson }} {{ [1, 2] | tojson(indent=1) }}
{% if add_generation_prompt -%}
    <|assistant|>
{% endif %}"""
TEMPLATES = {"chatml": CHATML, "llama 2": LLAMA2, "all that is allowed": SPREAD}
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}
USER = {"role": "user", "content": " Where is the cat? "}
TALKS: dict[str, list[dict[str, str]]] = {
    "a question": [USER],
    "a system and turns": [
        {"role": "system", "content": "Be kind."},
        USER,
        {"role": "assistant", "content": "On the roof.\nIt is asleep."},
        {"role": "user", "content": "<b>Wake it</b> – 'now'!"},
    ],
}


@pytest.mark.parametrize("talk", TALKS.values(), ids=TALKS)
@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES)
def test_a_template_is_rendered_as_by_the_reference(source: str, talk: list[dict[str, str]]) -> None:
    from transformers.utils import chat_template_utils

    render: Any = chat_template_utils.render_jinja_template
    theirs, _ = render([talk], chat_template=source, add_generation_prompt=True, **SPECIALS)
    assert [Template(source, SPECIALS).render(talk)] == theirs


def test_the_date_is_available() -> None:
    assert Template("{{ strftime_now('%Y') }}", {}).render([USER]) == time.strftime("%Y")


def test_a_template_may_refuse_a_conversation() -> None:
    twice = [USER, USER]
    with pytest.raises(UserError, match="rejects this conversation: Conversation roles must alternate"):
        Template(LLAMA2, SPECIALS).render(twice)


ESCAPES = {
    "a class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a class by filter": "{{ ''|attr('__class__') }}",
    "a class by format": "{{ '{0.__class__}'.format(messages) }}",
    "globals of a function": "{{ raise_exception.__globals__['__builtins__']['open']('/etc/passwd').read() }}",
    "a module": "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "a name of Python's": "{% set ns = namespace() %}{% set ns.__html__ = 1 %}",
    "a name of Python's at once": "{{ namespace(__call__=1) }}",
    "a change": "{% set x = messages.append(1) %}",
    "another file": "{% include '/etc/passwd' %}",
    "an import": "{% import 'os' as os %}",
}
EXPENSIVE = {
    "a range": "{% for a in range(10 ** 9) %}{% endfor %}",
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops of loops": "{% for a in range(9999) recursive %}{{ loop([1, 2]) if a < 9 }}{% endfor %}",
    "a product": "{% for a in [[1]] * 9999999 %}{% endfor %}",
    "a product in a text": "{{ ('x' * 999999999) | length }}",
    "a power": "{{ 10 ** 10 ** 10 }}",
    "calls of calls": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(200) }}",
    "calls without end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a long text": "{% for a in range(9999) %}{{ 'x' * 999 }}{% endfor %}",
    "sums": "{% set a = 'aaaaaaaaaaaaaaaa' %}" + "{% set a = a + a %}" * 30,
    "concatenations": "{% set a = 'aaaaaaaaaaaaaaaa' %}" + "{% set a = a ~ a %}" * 30,
    "captures": "{% set a = 'aaaaaaaaaaaaaaaa' %}" + "{% set a %}{{ a }}{{ a }}{% endset %}" * 30,
    "a format": "{{ '%999999999s' % 1 }}",
    "a format by method": "{{ '{:999999999}'.format(1) }}",
    "a wide text": "{{ 'x'.center(4000000000) }}",
    "a wide text by filter": "{{ ['x'] | map('center', 4000000000) | list }}",
    "replacements": "{{ ('x' * 99999).replace('x', 'x' * 99999) }}",
    "a join": "{{ ('x' * 99999).join(['x'] * 99999) }}",
    "batches": "{{ [1] | batch(999999999, 0) | list }}",
    "an indented object": "{{ {'a': [1]} | tojson(indent=4000000000) }}",
    "filler text": "{{ lipsum(n=10000000) }}",
    "nested loops": "{% for a in [1] %}" * 25 + "x" + "{% endfor %}" * 25,
    "nested conditions": "{% if 1 %}" * 120 + "x" + "{% endif %}" * 120,
    "many conditions": "{% if 0 %}" + "{% elif 0 %}" * 8000 + "{% endif %}",
    "half a character": "{{ '\\ud800' }}",
}


@pytest.mark.parametrize("source", ESCAPES.values(), ids=ESCAPES)
def test_a_template_does_not_escape_from_the_sandbox(source: str) -> None:
    with suppress(UserError):
        assert Template(source, SPECIALS).render([USER]) == ""  # what is forbidden is undefined
    assert USER == {"role": "user", "content": " Where is the cat? "}


@pytest.mark.parametrize("source", EXPENSIVE.values(), ids=EXPENSIVE)
def test_the_time_memory_and_output_of_a_template_are_limited(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.text.chat_template.SECONDS", 0.2)
    start = time.perf_counter()
    with suppress(UserError):
        assert len(Template(source, SPECIALS).render([USER])) <= MAX_PROMPT
    assert time.perf_counter() - start < 10


def test_a_template_that_was_ended_renders_the_next_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.text.chat_template.SECONDS", 0.2)
    template = Template(
        "{% for a in range(messages[0].content | int) %}{% for b in range(9999) %}{% endfor %}{% endfor %}x", {}
    )
    for _ in range(2):
        with pytest.raises(UserError, match=r"takes more than 0\.2 seconds"):
            template.render([{"role": "user", "content": "99999"}])
        assert template.render([{"role": "user", "content": "2"}]) == "x"


@pytest.mark.parametrize("source", ["{% for %}", "{% nonsense %}", "{{ 1 + }}", "{" * 3 + "(" * 9999])
def test_a_broken_template_is_an_error(source: str) -> None:
    with pytest.raises(UserError, match="the chat template is invalid"):
        Template(source, {}).render([USER])


MEMORY_HUNGRY = "{% set a = 'aaaaaaaaaaaaaaaa' %}" + "{% set a = a ~ a %}" * 30
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
ECHO = "{{ messages[0].content }}" + "{% if messages[0].content == 'endless' %}" + ENDLESS + "{% endif %}"


def talk(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def test_an_interrupted_conversation_leaves_no_reply_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    template = Template(ECHO, {})
    assert template.render(talk("first")) == "first"
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(KeyboardInterrupt):
        template.render(talk("endless"))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert template.render(talk("second")) == "second"
    monkeypatch.setattr(template._worker, "replies", 7)
    with pytest.raises(UserError, match="replied to another request"):
        template.render(talk("third"))
    assert template.render(talk("fourth")) == "fourth"


@pytest.mark.skipif(sys.platform != "linux", reason="the system limits no memory")
def test_memory_is_limited() -> None:
    with pytest.raises(UserError, match="the chat template needs more than 512 MB"):
        Template(MEMORY_HUNGRY, {}).render([USER])


def test_time_is_limited_where_the_signal_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.text.chat_template.SECONDS", 0.2)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPROF])
    ignored = signal.signal(signal.SIGPROF, signal.SIG_IGN)
    try:
        with pytest.raises(UserError, match=r"takes more than 0\.2 seconds"):
            Template(ENDLESS, {}).render([USER])
    finally:
        signal.signal(signal.SIGPROF, ignored)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])


def test_time_is_limited_where_the_system_limits_none(monkeypatch: pytest.MonkeyPatch) -> None:
    template = Template(ECHO, {})
    template.render([USER])
    monkeypatch.setattr("regard.text.chat_template.WAITING_SECONDS", 0.2)
    with pytest.raises(UserError, match="takes more than 5 seconds"):
        template.render(talk("endless"))


@pytest.mark.parametrize("source", ["{{ raise_exception('x' * 9999999) }}", "{{ [][('x' * 9999999)].a }}"])
def test_an_error_of_a_template_is_short(source: str) -> None:
    with pytest.raises(UserError) as caught:
        Template(source, {}).render([USER])
    assert "the chat template" in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("program", "reason"), [("/bin/true", "exit code 0"), ("/bin/ls", "exit code 2 .*ls"), ("/nonexistent", "No such")]
)
def test_a_process_that_does_not_start_is_reported_so(
    program: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(UserError, match=f"could not be started .*{reason}"):
        Template("x", {}).render([USER])


def test_a_fork_renders_in_its_own_process_and_ends() -> None:
    script = """if True:
        import os, signal, sys
        from regard.text.chat_template import Template
        template = Template("{{ messages[0].content }}", {})
        template.render([{"content": "first"}])
        child = os.fork()
        signal.alarm(20)  # a child that waits for its parent's process never ends
        if child == 0:
            assert template.render([{"content": "child"}]) == "child"
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert template.render([{"content": "parent"}]) == "parent"
    """
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("content", [b"bytes", {1, 2}])
def test_a_message_is_text(content: Any) -> None:
    with pytest.raises(UserError, match="messages: expected text as role and content"):
        Template("x", {}).render(talk(content))


def test_a_tokenizer_has_one_process_that_starts_when_it_is_used(tmp_path: Path) -> None:
    tokenizer = Vocabulary.load(folder_with(tmp_path / "a", chat_template=ECHO)).target
    template = template_of(tokenizer)
    assert template is not None and template is template_of(tokenizer)
    assert template._worker is None
    template.render([USER])
    assert template._worker is not None
    process = template._worker.process
    tokenizer.settings = {"chat_template": "x"}
    assert template_of(tokenizer) is not template
    del template
    gc.collect()
    assert process.wait(timeout=10) == -signal.SIGKILL


def test_a_template_of_any_size_is_not_run() -> None:
    with pytest.raises(UserError, match=r"131,073 characters, at most 131,072"):
        Template("x" * (MAX_TEMPLATE + 1), {})


def test_a_missing_jinja_is_an_error_with_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UserError, match=r"pip install \"regard\[chat\]\""):
        Template(CHATML, {})


# ── folders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def folder_with(folder: Path, **config: Any) -> Path:
    """A foreign tokenizer's folder."""
    vocabulary(41).save(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


def test_a_template_and_foreign_settings_survive_load_and_save(tmp_path: Path) -> None:
    foreign = {"chat_template": CHATML, "model_max_length": 977, "legacy": True, "auto_map": {"AutoTokenizer": "x.Y"}}
    loaded = Vocabulary.load(folder_with(tmp_path / "theirs", **foreign))
    loaded.save(tmp_path / "ours")
    written = json.loads((tmp_path / "ours" / "tokenizer_config.json").read_text())
    assert {key: written.get(key) for key in foreign} == foreign | {"auto_map": None}  # it would name their code
    again = Vocabulary.load(tmp_path / "ours")
    again.save(tmp_path / "again")
    for path in (tmp_path / "ours").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes()


def rendered(tokenizer: Tokenizer) -> str:
    template = template_of(tokenizer)
    assert template is not None
    return template.render([USER])


def test_a_template_is_found_wherever_it_is_kept(tmp_path: Path) -> None:
    assert template_of(Vocabulary.load(folder_with(tmp_path / "none")).target) is None
    several = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ bos_token }} yes"}]
    folder = folder_with(tmp_path / "several", chat_template=several)
    assert rendered(Vocabulary.load(folder).target) == "<s> yes"
    (folder / "chat_template.jinja").write_text("from the file{{ eos_token }}", encoding="utf-8")
    found = Vocabulary.load(folder)
    assert rendered(found.target) == "from the file</s>"
    found.save(tmp_path / "saved")
    assert rendered(Vocabulary.load(tmp_path / "saved").target) == "from the file</s>"
    Vocabulary.load(tmp_path / "none").save(folder)
    assert template_of(Vocabulary.load(folder).target) is None  # another's template made way
    with pytest.raises(UserError, match="chat_template: expected a string, found a int"):
        template_of(Vocabulary.load(folder_with(tmp_path / "number", chat_template=7)).target)
