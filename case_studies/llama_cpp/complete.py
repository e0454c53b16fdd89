"""Continue a prompt with stock llama.cpp from its wheel (xllamacpp), as any user of it would: greedy, on one thread.

python complete.py MODEL.gguf 504,3575,282 --tokens 16 [--flash] [--context 256] [--batch N] [--cache q8_0]
"""

from __future__ import annotations

import argparse

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("prompt", help="token ids")
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--flash", action="store_true", help="with flash attention, off without")
    parser.add_argument("--batch", type=int, default=0, help="tokens of a prompt that are read at once; 0: its own")
    parser.add_argument("--cache", default="f16", help="type of what is kept (quantised: with --flash)")
    args = parser.parse_args()

    flash = xllamacpp.llama_flash_attn_type
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.n_ctx = args.context
    params.n_gpu_layers = 0
    params.n_parallel = 1
    params.warmup = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.flash_attn_type = flash.LLAMA_FLASH_ATTN_TYPE_ENABLED if args.flash else flash.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.cache_type_k = params.cache_type_v = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{args.cache.upper()}")
    if args.batch:
        params.n_batch = params.n_ubatch = args.batch
    params.verbosity = 0
    server = xllamacpp.Server(params)
    ids = [int(word) for word in args.prompt.split(",")]
    wish = {"prompt": ids, "n_predict": args.tokens, "temperature": 0.0, "n_probs": 1, "cache_prompt": False}
    choice = server.handle_completions(wish)["choices"][0]
    for token in choice["logprobs"]["content"]:
        print(token["id"], repr(token["token"]), repr(token["logprob"]))
    print(choice["text"])


if __name__ == "__main__":
    main()
