"""Models of sound and of video from `transformers`, small."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.zoo.language import model_of
from benchmarks.zoo.sample import Build, Flat, Sample

CONVOLUTIONS: dict[str, Any] = {"conv_dim": [64] * 7, "num_feat_extract_layers": 7}
ENCODER: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
}


def wave(name: str, config: str, samples: int = 16000, **fields: Any) -> Build:
    """A model of a waveform at 16 kHz."""

    def build() -> Sample:
        model = model_of(name, config, **fields)
        inputs = {"input_values": torch.randn(1, samples)}
        return Sample(Flat(model, list(inputs)), inputs, {"input_values": {0: "batch"}})

    return build


def whisper() -> Sample:
    model = model_of(
        "WhisperForConditionalGeneration", "WhisperConfig", d_model=128, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256, vocab_size=1000,
        num_mel_bins=80, max_source_positions=200, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    )  # fmt: skip
    inputs = {"input_features": torch.randn(1, 80, 400), "decoder_input_ids": torch.randint(3, 1000, (1, 7))}
    return Sample(Flat(model, list(inputs), use_cache=False), inputs, {"decoder_input_ids": {1: "length"}})


def speech_to_text() -> Sample:
    model = model_of(
        "Speech2TextForConditionalGeneration", "Speech2TextConfig", d_model=128, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256, vocab_size=1000,
    )  # fmt: skip
    inputs = {"input_features": torch.randn(1, 100, 80), "decoder_input_ids": torch.randint(3, 1000, (1, 7))}
    return Sample(Flat(model, list(inputs), use_cache=False), inputs)


def audio_transformer() -> Sample:
    model = model_of("ASTModel", "ASTConfig", **ENCODER, max_length=128, num_mel_bins=64)
    return Sample(Flat(model, ["input_values"]), {"input_values": torch.randn(1, 128, 64)})


def codec() -> Sample:
    """EnCodec's encoder and decoder without its quantiser: convolutions along time and an LSTM."""
    model = model_of("EncodecModel", "EncodecConfig", num_filters=8, hidden_size=32, codebook_dim=32)
    inputs = {"samples": torch.randn(1, 1, 6400)}
    return Sample(torch.nn.Sequential(model.encoder, model.decoder), inputs)


def hifi_gan() -> Sample:
    """A vocoder: transposed convolutions and residual blocks of dilated ones turn a spectrogram into a waveform."""
    model = model_of("SpeechT5HifiGan", "SpeechT5HifiGanConfig", upsample_initial_channel=256)
    return Sample(Flat(model, ["spectrogram"]), {"spectrogram": torch.randn(1, 40, 80)})


def video(name: str, config: str, **fields: Any) -> Build:
    def build() -> Sample:
        model = model_of(name, config, **ENCODER, image_size=32, **fields)
        return Sample(Flat(model, ["pixel_values"]), {"pixel_values": torch.randn(1, 8, 3, 32, 32)})

    return build


def time_series() -> Sample:
    model = model_of(
        "PatchTSTForPrediction", "PatchTSTConfig", num_input_channels=3, context_length=64, patch_length=8,
        patch_stride=8, d_model=64, num_hidden_layers=2, num_attention_heads=4, ffn_dim=128, prediction_length=12,
    )  # fmt: skip
    return Sample(Flat(model, ["past_values"]), {"past_values": torch.randn(2, 64, 3)})


MODELS: dict[str, Build] = {
    "whisper": whisper,
    "wav2vec2": wave("Wav2Vec2ForCTC", "Wav2Vec2Config", vocab_size=32, **ENCODER, **CONVOLUTIONS),
    "hubert": wave("HubertModel", "HubertConfig", **ENCODER, **CONVOLUTIONS),
    "wavlm": wave("WavLMModel", "WavLMConfig", **ENCODER, **CONVOLUTIONS),
    "sew": wave("SEWModel", "SEWConfig", squeeze_factor=2, **ENCODER),
    "conformer": wave("Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig", **ENCODER, **CONVOLUTIONS),
    "data2vec_audio": wave("Data2VecAudioModel", "Data2VecAudioConfig", **ENCODER, **CONVOLUTIONS),
    "speech_to_text": speech_to_text,
    "audio_transformer": audio_transformer,
    "codec": codec,
    "hifi_gan": hifi_gan,
    "timesformer": video("TimesformerModel", "TimesformerConfig", patch_size=8, num_frames=8),
    "videomae": video("VideoMAEModel", "VideoMAEConfig", patch_size=8, num_frames=8, tubelet_size=2),
    "time_series": time_series,
}
