"""`gguf_to_hf.py MODEL.gguf FOLDER`: a Llama in a GGUF file as vLLM reads it, in bf16.

Runs in the environment of vLLM, which brings torch and transformers.
"""

import json
import sys
from pathlib import Path

import torch  # pyright: ignore[reportMissingImports]
from safetensors.torch import save_file  # pyright: ignore[reportMissingImports]
from transformers import (  # pyright: ignore[reportMissingImports]
    AutoModelForCausalLM,
    AutoTokenizer,
)


def main(source: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    named = {"gguf_file": source.name}
    AutoTokenizer.from_pretrained(source.parent, **named).save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(source.parent, **named, dtype=torch.float32)
    weights = {
        name: tensor.detach().to(torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"  # it is that of the embeddings
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict() | {
        "architectures": ["LlamaForCausalLM"],
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": True,
    }
    config.pop("quantization_config", None)
    text = json.dumps(config, indent=1, default=str)
    (folder / "config.json").write_text(text, encoding="utf-8")


main(Path(sys.argv[1]), Path(sys.argv[2]))
