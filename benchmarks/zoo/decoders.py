"""Language models of recent years, and encoders that the first table left out, from `transformers`."""

from __future__ import annotations

from typing import Any

from benchmarks.zoo.language import GROUPED, MLP, TWO_LAYERS, decoder, encoder, maskless, translator
from benchmarks.zoo.sample import Build, Sample

SMALL: dict[str, Any] = {**GROUPED, "hidden_size": 128, "intermediate_size": 256}
EXPERTS: dict[str, Any] = {
    **SMALL, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "experts_implementation": "batched_mm",
}  # fmt: skip
STATES: dict[str, Any] = {
    "mamba_d_ssm": 128, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_n_groups": 1, "mamba_d_state": 16,
    "mamba_chunk_size": 16,
}  # fmt: skip
T5_LIKE: dict[str, Any] = {
    "d_model": 256, "d_ff": 512, "d_kv": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 1000,
    "decoder_start_token_id": 0,
}  # fmt: skip


def t5_gemma() -> Sample:
    part = {**SMALL, "head_dim": 32, "sliding_window": 16}
    return translator("T5GemmaForConditionalGeneration", "T5GemmaConfig", encoder=part, decoder=part, vocab_size=1000)()


MODELS: dict[str, Build] = {
    "qwen3": decoder("Qwen3ForCausalLM", "Qwen3Config", head_dim=64, **GROUPED),
    "qwen3_moe": decoder("Qwen3MoeForCausalLM", "Qwen3MoeConfig", num_experts=8, head_dim=32, **EXPERTS),
    "gemma3n": decoder(
        "Gemma3nForCausalLM", "Gemma3nTextConfig", head_dim=32, vocab_size_per_layer_input=1000, laurel_rank=16,
        hidden_size_per_layer_input=32, num_kv_shared_layers=0, activation_sparsity_pattern=[0.95, 0.0],
        layer_types=["sliding_attention", "full_attention"], sliding_window=16, **SMALL,
    ),
    "deepseek_v3": decoder(
        "DeepseekV3ForCausalLM", "DeepseekV3Config", n_routed_experts=8, n_group=2, topk_group=1, q_lora_rank=32,
        kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=32, first_k_dense_replace=1,
        **{**EXPERTS, "num_key_value_heads": 4},
    ),
    "lfm2": decoder("Lfm2ForCausalLM", "Lfm2Config", layer_types=["conv", "full_attention"], **GROUPED),
    "falcon_h1": decoder("FalconH1ForCausalLM", "FalconH1Config", **STATES, **SMALL),
    "zamba2": decoder(
        "Zamba2ForCausalLM", "Zamba2Config", mamba_d_state=16, mamba_headdim=32, n_mamba_heads=8, chunk_size=16,
        mamba_ngroups=1, num_mem_blocks=1, adapter_rank=16, layers_block_type=["mamba", "hybrid"], pad_token_id=0,
        **{**SMALL, "num_key_value_heads": 4},
    ),
    "xlstm": maskless(
        "xLSTMForCausalLM", "xLSTMConfig", hidden_size=128, num_hidden_layers=2, num_heads=4, vocab_size=1000,
        chunk_size=16, use_cache=False, embedding_dim=128,
    ),
    "gpt_oss": decoder("GptOssForCausalLM", "GptOssConfig", num_local_experts=4, head_dim=32, **EXPERTS),
    "diff_llama": decoder("DiffLlamaForCausalLM", "DiffLlamaConfig", **GROUPED),
    "apertus": decoder("ApertusForCausalLM", "ApertusConfig", pad_token_id=0, **GROUPED),
    "doge": decoder("DogeForCausalLM", "DogeConfig", **GROUPED),
    "mpt": decoder("MptForCausalLM", "MptConfig", d_model=256, n_layers=2, n_heads=4, vocab_size=1000),
    "mobile_bert": encoder(
        "MobileBertModel", "MobileBertConfig", embedding_size=64, intra_bottleneck_size=64, **MLP
    ),
    "squeeze_bert": encoder("SqueezeBertModel", "SqueezeBertConfig", embedding_size=256, **MLP),
    "conv_bert": encoder("ConvBertModel", "ConvBertConfig", embedding_size=128, **MLP),
    "i_bert": encoder("IBertModel", "IBertConfig", quant_mode=True, **MLP),
    "yoso": encoder("YosoModel", "YosoConfig", use_expectation=True, max_position_embeddings=50, **MLP),
    "long_t5": translator(
        "LongT5ForConditionalGeneration", "LongT5Config", encoder_attention_type="transient-global", local_radius=7,
        global_block_size=8, **T5_LIKE,
    ),
    "switch": translator(
        "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig", num_experts=4, **T5_LIKE
    ),
    "t5_gemma": t5_gemma,
    "led": translator("LEDForConditionalGeneration", "LEDConfig", attention_window=[16, 16], **TWO_LAYERS),
    "prophet_net": translator(
        "ProphetNetForConditionalGeneration", "ProphetNetConfig", hidden_size=256, num_encoder_layers=2,
        num_decoder_layers=2, num_encoder_attention_heads=4, num_decoder_attention_heads=4, encoder_ffn_dim=512,
        decoder_ffn_dim=512, vocab_size=1000, ngram=2, decoder_start_token_id=0,
    ),
}  # fmt: skip
