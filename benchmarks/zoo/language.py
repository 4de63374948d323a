"""Language models from `transformers`: a few layers of realistic width, with random weights."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.zoo.sample import Build, Dynamic, Flat, Sample, optional

WIDE: dict[str, Any] = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000}
MLP: dict[str, Any] = {**WIDE, "intermediate_size": 512}
LENGTH = 48
BATCH_AND_LENGTH: Dynamic = {name: {0: "batch", 1: "length"} for name in ("input_ids", "attention_mask")}


def model_of(name: str, config: str, **fields: Any) -> Any:
    transformers = optional("transformers")
    settings = getattr(transformers, config)(**fields)
    settings._attn_implementation = "eager" if fields.get("eager") else "sdpa"
    try:
        return getattr(transformers, name)(settings).eval()
    except ValueError:  # a model without scaled-dot-product attention
        settings._attn_implementation = "eager"
        return getattr(transformers, name)(settings).eval()


def tokens(vocabulary: int = 1000, batch: int = 2, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, vocabulary, (batch, length))


def padding(batch: int = 2, length: int = LENGTH) -> torch.Tensor:
    """The second sequence is padded at its end."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[1:, length - length // 4 :] = 0
    return mask


def encoder(name: str, config: str, **fields: Any) -> Build:
    """Takes token ids and a padding mask."""

    def build() -> Sample:
        model = model_of(name, config, **fields)
        inputs = {"input_ids": tokens(), "attention_mask": padding()}
        return Sample(Flat(model, list(inputs)), inputs, BATCH_AND_LENGTH)

    return build


def decoder(name: str, config: str, **fields: Any) -> Build:
    """A causal language model over a whole prompt, without a cache."""

    def build() -> Sample:
        model = model_of(name, config, **fields)
        inputs = {"input_ids": tokens(), "attention_mask": padding()}
        return Sample(Flat(model, list(inputs), use_cache=False), inputs, BATCH_AND_LENGTH)

    return build


def maskless(name: str, config: str, **fields: Any) -> Build:
    """A model of token ids alone."""

    def build() -> Sample:
        model = model_of(name, config, **fields)
        return Sample(Flat(model, ["input_ids"]), {"input_ids": tokens()}, {"input_ids": {0: "batch", 1: "length"}})

    return build


def translator(name: str, config: str, **fields: Any) -> Build:
    """Encoder and decoder in one graph."""

    def build() -> Sample:
        model = model_of(name, config, **fields)
        inputs = {"input_ids": tokens(), "attention_mask": padding(), "decoder_input_ids": tokens(length=11)}
        open_axes = {**BATCH_AND_LENGTH, "decoder_input_ids": {0: "batch", 1: "target"}}
        return Sample(Flat(model, list(inputs), use_cache=False), inputs, open_axes)

    return build


class Cached(torch.nn.Module):
    """One step of generation: the keys and values of the past come in and go out, longer by one."""

    def __init__(self, model: Any, layers: int) -> None:
        super().__init__()
        self.model, self.layers = model, layers

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, *past: Any) -> tuple[Any, ...]:
        cache = optional("transformers").DynamicCache()
        for layer in range(self.layers):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        out = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache
        )
        kept = [part for layer in out.past_key_values.layers for part in (layer.keys, layer.values)]
        return out.logits, *kept


def cached(name: str, config: str, past: int = 31, **fields: Any) -> Build:
    def build() -> Sample:
        model = model_of(name, config, **fields)
        settings = model.config
        layers, heads = settings.num_hidden_layers, settings.num_attention_heads
        shape = (2, getattr(settings, "num_key_value_heads", heads), past, settings.hidden_size // heads)
        inputs = {
            "input_ids": tokens(length=1),
            "attention_mask": torch.ones(2, past + 1, dtype=torch.int64),
            "position_ids": torch.full((2, 1), past),
        }
        inputs |= {f"{part}{layer}": torch.randn(shape) for layer in range(layers) for part in ("key", "value")}
        open_axes: dict[str, dict[int, str]] = {name: {0: "batch", 2: "past"} for name in inputs if name[-1].isdigit()}
        open_axes |= {
            "input_ids": {0: "batch"},
            "attention_mask": {0: "batch", 1: "total"},
            "position_ids": {0: "batch"},
        }
        return Sample(Cached(model, layers), inputs, open_axes)

    return build


GROUPED = {**MLP, "num_key_value_heads": 2}
TWO_LAYERS: dict[str, int] = {
    "d_model": 256,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512,
    "vocab_size": 1000,
}
"""An encoder and a decoder, as BART's family names their sizes."""

MODELS: dict[str, Build] = {
    "distilbert": encoder(
        "DistilBertModel", "DistilBertConfig", dim=256, n_layers=2, n_heads=4, hidden_dim=512, vocab_size=1000
    ),
    "albert": encoder("AlbertModel", "AlbertConfig", embedding_size=64, **MLP),
    "roberta": encoder("RobertaForSequenceClassification", "RobertaConfig", **MLP),
    "deberta_v2": encoder(
        "DebertaV2Model",
        "DebertaV2Config",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=32,
        max_relative_positions=64,
        type_vocab_size=0,
        **MLP,
    ),
    "deberta": encoder(
        "DebertaModel",
        "DebertaConfig",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        max_relative_positions=64,
        **MLP,
    ),
    "electra": encoder("ElectraForTokenClassification", "ElectraConfig", embedding_size=128, **MLP),
    "mpnet": encoder("MPNetModel", "MPNetConfig", **MLP),
    "modernbert": encoder(
        "ModernBertModel",
        "ModernBertConfig",
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
        global_attn_every_n_layers=2,
        local_attention=16,
        **MLP,
    ),
    "nomic_longformer": encoder("LongformerModel", "LongformerConfig", attention_window=16, **MLP),
    "funnel": encoder(
        "FunnelModel",
        "FunnelConfig",
        block_sizes=[1, 1],
        d_model=256,
        n_head=4,
        d_head=64,
        d_inner=512,
        vocab_size=1000,
    ),
    "nystromformer": encoder(
        "NystromformerModel", "NystromformerConfig", num_landmarks=8, segment_means_seq_len=48, **MLP
    ),
    "fnet": maskless("FNetModel", "FNetConfig", **MLP),
    "xlnet": encoder("XLNetModel", "XLNetConfig", d_model=256, n_layer=2, n_head=4, d_inner=512, vocab_size=1000),
    "t5": translator(
        "T5ForConditionalGeneration",
        "T5Config",
        d_model=256,
        d_ff=512,
        d_kv=64,
        num_layers=2,
        num_heads=4,
        vocab_size=1000,
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=0,
    ),
    "bart": translator("BartForConditionalGeneration", "BartConfig", **TWO_LAYERS),
    "marian": translator("MarianMTModel", "MarianConfig", **TWO_LAYERS, pad_token_id=0, decoder_start_token_id=0),
    "llama": decoder("LlamaForCausalLM", "LlamaConfig", **GROUPED),
    "llama_cached": cached("LlamaForCausalLM", "LlamaConfig", **GROUPED),
    "mistral": decoder("MistralForCausalLM", "MistralConfig", sliding_window=16, **GROUPED),
    "qwen2": decoder("Qwen2ForCausalLM", "Qwen2Config", **GROUPED),
    "qwen3_cached": cached("Qwen3ForCausalLM", "Qwen3Config", head_dim=64, **GROUPED),
    "gemma2": decoder("Gemma2ForCausalLM", "Gemma2Config", head_dim=64, sliding_window=16, **GROUPED),
    "gemma3": decoder("Gemma3ForCausalLM", "Gemma3TextConfig", head_dim=64, sliding_window=16, **GROUPED),
    "phi": decoder("PhiForCausalLM", "PhiConfig", **MLP),
    "phi3": decoder("Phi3ForCausalLM", "Phi3Config", pad_token_id=0, **GROUPED),
    "gpt_neox": decoder("GPTNeoXForCausalLM", "GPTNeoXConfig", rotary_pct=0.25, **MLP),
    "gptj": decoder("GPTJForCausalLM", "GPTJConfig", n_embd=256, n_layer=2, n_head=4, rotary_dim=32, vocab_size=1000),
    "gpt_neo": decoder(
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        hidden_size=256,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=16,
        vocab_size=1000,
    ),
    "gpt2_cached": cached("GPT2LMHeadModel", "GPT2Config", n_embd=256, n_layer=2, n_head=4, vocab_size=1000),
    "bloom": decoder("BloomForCausalLM", "BloomConfig", hidden_size=256, n_layer=2, n_head=4, vocab_size=1000),
    "falcon": decoder("FalconForCausalLM", "FalconConfig", new_decoder_architecture=False, multi_query=True, **WIDE),
    "opt": decoder("OPTForCausalLM", "OPTConfig", ffn_dim=512, word_embed_proj_dim=256, **WIDE),
    "olmo2": decoder("Olmo2ForCausalLM", "Olmo2Config", **GROUPED),
    "cohere": decoder("CohereForCausalLM", "CohereConfig", **GROUPED),
    "stablelm": decoder("StableLmForCausalLM", "StableLmConfig", **GROUPED),
    "mixtral": decoder("MixtralForCausalLM", "MixtralConfig", num_local_experts=4, num_experts_per_tok=2, **GROUPED),
    "mamba": maskless(
        "MambaForCausalLM", "MambaConfig", hidden_size=128, num_hidden_layers=2, vocab_size=1000, use_cache=False
    ),
    "mamba2": maskless(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        hidden_size=128,
        num_hidden_layers=2,
        vocab_size=1000,
        num_heads=4,
        head_dim=64,
        n_groups=2,
        state_size=16,
        chunk_size=16,
        use_cache=False,
    ),
    "rwkv": maskless(
        "RwkvForCausalLM", "RwkvConfig", hidden_size=128, num_hidden_layers=2, vocab_size=1000, use_cache=False
    ),
    "recurrent_gemma": maskless(
        "RecurrentGemmaForCausalLM",
        "RecurrentGemmaConfig",
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=384,
        vocab_size=1000,
        use_cache=False,
        attention_window_size=16,
    ),
    "xglm": decoder(
        "XGLMForCausalLM", "XGLMConfig", d_model=256, num_layers=2, attention_heads=4, ffn_dim=512, vocab_size=1000
    ),
    "codegen": decoder(
        "CodeGenForCausalLM", "CodeGenConfig", n_embd=256, n_layer=2, n_head=4, rotary_dim=32, vocab_size=1000
    ),
    "persimmon": decoder("PersimmonForCausalLM", "PersimmonConfig", **MLP),
    "canine": encoder("CanineModel", "CanineConfig", **{**MLP, "local_transformer_stride": 16}),
    "perceiver": encoder(
        "PerceiverForMaskedLM",
        "PerceiverConfig",
        d_model=128,
        d_latents=128,
        num_latents=32,
        num_self_attends_per_block=2,
        num_self_attention_heads=4,
        num_cross_attention_heads=4,
        vocab_size=262,
        max_position_embeddings=48,
    ),
}
