"""GPT-2 124M writing: regard beside transformers, CTranslate2 and llama.cpp, on the same random weights.

A prompt of 32 tokens, 96 new ones, greedy. Peers that are not installed are left out, and said so:
pip install "regard[bench]" brings them all (llama-cpp-python is compiled then).
"""

import importlib
import importlib.util
import json
import random
import sys
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.sides import Result, Work, compare

VOCABULARY, PROMPT, NEW = 50257, 32, 96


def measure(rounds: int, threads: int) -> list[Result]:
    with TemporaryDirectory() as directory:
        folder = Path(directory) / "gpt2"
        write(folder)
        results = []
        for name, precision, batch, package, peer, model in [
            ("float32, beside transformers", "float32", 1, "transformers", hugging, "gpt2"),
            ("float32, beside CTranslate2 float32", "float32", 1, "ctranslate2", ctranslate, "float32"),
            ("float32, beside llama.cpp f32", "float32", 1, "llama_cpp", llama, "f32.gguf"),
            ("int8, beside CTranslate2 int8", "int8", 1, "ctranslate2", ctranslate, "int8"),
            ("int8, beside llama.cpp Q8_0", "int8", 1, "llama_cpp", llama, "q8_0.gguf"),
            ("float32, batch 8, beside transformers", "float32", 8, "transformers", hugging, "gpt2"),
        ]:
            if importlib.util.find_spec(package) is None:
                print(f"left out: {name} ({package} is not installed)", file=sys.stderr)
                continue
            other = converted(folder, model)
            rows = prompts(batch)
            sides = {"regard": (ours, str(folder), precision, rows, threads), "peer": (peer, str(other), rows, threads)}
            results.append(compare(name, "tokens/s", batch * NEW, sides, rounds, agreement))
    return results


def prompts(count: int) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(4, VOCABULARY) for _ in range(PROMPT)] for _ in range(count)]


def write(folder: Path) -> None:
    """A checkpoint of GPT-2's shape with random weights, and as many tokens."""
    import torch

    from regard.config.recipe import TokenizerOptions
    from regard.interop.folder import save
    from regard.models.registry import build
    from regard.text.train_tokenizer import train_tokenizer
    from regard.text.vocabulary import Vocabulary

    options = TokenizerOptions(kind="words", vocab_size=VOCABULARY, min_frequency=1)
    words = train_tokenizer((f"w{index}" for index in range(VOCABULARY - 4)), options, append_eos=False)
    torch.manual_seed(1)
    save(folder, build({"family": "gpt", "preset": "gpt2"}, vocabulary=VOCABULARY), Vocabulary(words, words), {})


def ours(folder: str, precision: str, rows: list[list[int]], threads: int) -> Work:
    import torch

    import regard

    torch.set_num_threads(threads)
    model = regard.load(folder, device="cpu", precision=precision)
    return lambda: model.generate(rows, max_new_tokens=NEW, min_new_tokens=NEW)


def hugging(folder: str, rows: list[list[int]], threads: int) -> Work:
    import torch
    from transformers import GPT2LMHeadModel
    from transformers.utils.logging import disable_progress_bar

    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    disable_progress_bar()
    loaded: Any = GPT2LMHeadModel.from_pretrained(folder)
    model, tokens = loaded.eval(), torch.tensor(rows)
    ways = dict(max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)

    def work() -> list[list[int]]:
        with torch.inference_mode():
            return model.generate(tokens, attention_mask=torch.ones_like(tokens), **ways)[:, PROMPT:].tolist()

    return work


def ctranslate(folder: str, rows: list[list[int]], threads: int) -> Work:
    ctranslate2: Any = importlib.import_module("ctranslate2")
    words = json.loads((Path(folder) / "vocabulary.json").read_text())
    generator = ctranslate2.Generator(folder, device="cpu", inter_threads=1, intra_threads=threads)
    starts = [[words[token] for token in row] for row in rows]
    ways = dict(max_length=NEW, min_length=NEW, beam_size=1, sampling_topk=1, end_token=[])

    def work() -> list[list[int]]:
        results = generator.generate_batch(starts, include_prompt_in_result=False, **ways)
        return [each.sequences_ids[0] for each in results]

    return work


def llama(path: str, rows: list[list[int]], threads: int) -> Work:
    import ctypes

    import numpy as np

    llama_cpp: Any = importlib.import_module("llama_cpp")
    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, None)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_batch = 256, 256
    settings.n_threads = settings.n_threads_batch = threads
    context = llama_cpp.llama_init_from_model(model, settings)

    def step(tokens: list[int]) -> int:
        batch = (llama_cpp.llama_token * len(tokens))(*tokens)
        assert llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(batch, len(tokens))) == 0
        logits = ctypes.cast(llama_cpp.llama_get_logits_ith(context, -1), ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(logits, shape=(VOCABULARY,)).argmax())

    def work(keep: Any = silent) -> list[list[int]]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        output = [step(rows[0])]
        while len(output) < NEW:
            output.append(step(output[-1:]))
        return [output]

    return work


def converted(folder: Path, model: str) -> Path:
    """The same weights in a peer's own format, made once."""
    other = folder.parent / model
    if other.exists():
        return other
    if model.endswith(".gguf"):
        write_gguf(folder, other, eight_bits=model.startswith("q8"))
    else:
        converters: Any = importlib.import_module("ctranslate2.converters")
        converters.TransformersConverter(str(folder)).convert(str(other), quantization=model)
    return other


def write_gguf(folder: Path, path: Path, eight_bits: bool) -> None:
    """llama.cpp's format, by the names it has for GPT-2."""
    import numpy as np
    from safetensors.numpy import load_file

    gguf: Any = importlib.import_module("gguf")
    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(config["n_layer"])
    writer.add_context_length(config["n_positions"])
    writer.add_embedding_length(config["n_embd"])
    writer.add_feed_forward_length(4 * config["n_embd"])
    writer.add_head_count(config["n_head"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if eight_bits else gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("no_vocab")  # ids go in and out
    writer.add_vocab_size(VOCABULARY)
    outside = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
    inside = {"ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
              "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}  # fmt: skip
    named = {
        f"{theirs}.{kind}": f"{gguf_name}.{kind}"
        for theirs, gguf_name in outside.items()
        for kind in ("weight", "bias")
    }
    for index in range(config["n_layer"]):
        named |= {
            f"h.{index}.{theirs}.{kind}": f"blk.{index}.{gguf_name}.{kind}"
            for theirs, gguf_name in inside.items()
            for kind in ("weight", "bias")
        }
    for name, tensor in [*tensors.items(), ("output", tensors["transformer.wte.weight"])]:
        gguf_name = "output.weight" if name == "output" else named[name.removeprefix("transformer.")]
        transposed = np.ascontiguousarray(tensor.T) if ".c_" in name and tensor.ndim == 2 else tensor
        if eight_bits and tensor.ndim == 2 and "wpe" not in name:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(gguf_name, gguf.quants.quantize(transposed, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name, transposed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def agreement(ours: list[list[int]], theirs: list[list[int]]) -> str:
    """How far both write the same: random weights have near ties, and eight bits fall otherwise."""
    same = [
        next((index for index, pair in enumerate(zip(*rows, strict=True)) if pair[0] != pair[1]), NEW)
        for rows in zip(ours, theirs, strict=True)
    ]
    return f"the same tokens up to the {min(same)}th of {NEW}"
