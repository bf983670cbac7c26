"""Small language models that can be talked with, and a terminal to do it at, for the tests of the command line."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from pathlib import Path

import torch
from torch import nn

from regard.config.recipe import TokenizerOptions
from regard.interop import folder as folders
from regard.models.registry import build
from regard.text.train_tokenizer import train_tokenizer
from regard.text.vocabulary import Vocabulary

LIMIT = 211
CHATML = (
    "{% for message in messages %}{{ '<s>' + message.role + '\n' + message.content + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)


def language_folder(folder: Path, template: str = "", limit: int = LIMIT) -> Path:
    """A network of letters with random weights, which writes nonsense, but always the same."""
    letters = "".join(chr(code) for code in range(32, 127)) + "\né"
    made = train_tokenizer([letters], TokenizerOptions(kind="characters", min_frequency=1), append_eos=False)
    made.literal = False  # a foreign folder, whose special tokens may be typed
    torch.manual_seed(3)
    network = build(dict(family="llama", width=24, heads=3, depth=2, max_positions=limit), vocabulary=made.size).eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    folders.save(folder, network, Vocabulary(made, made), {})
    path = folder / "tokenizer_config.json"
    if template:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    return folder


class Screen:
    """A pseudo-terminal with a program in it."""

    def __init__(self, *command: str):
        self.master, slave = pty.openpty()
        self.program = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, preexec_fn=_take_terminal
        )
        os.close(slave)
        self.text = ""

    def until(self, pattern: str, seconds: float = 120) -> str:
        """What is shown until the pattern comes."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text)):
            ready, _, _ = select.select([self.master], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{pattern!r} did not come: {self.text!r}"
            self.text += os.read(self.master, 4096).decode(errors="replace")
        shown, self.text = self.text[: found.end()], self.text[found.end() :]
        return shown

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())


def _take_terminal() -> None:
    """Makes the slave, which is stdin, the terminal that Ctrl-C comes from."""
    import fcntl
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever runs the tests in the background ignores it

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
