"""Train steps of models of keras-hub for images, video and sound, and more of its languages.

As those of ``bench/programs/published_keras.py``: as the package defines them, at published widths
with fewer layers where that saves the compilers' time, in mixed precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bench.programs.keras_steps import (
    called,
    classified,
    cross_entropy,
    model_of,
    token_step,
    trained,
)
from bench.programs.storage import Case, spec


def _classes(backbone: Any, images: tuple[int, ...], classes: int = 1000) -> Case:
    """A backbone whose last feature map is pooled and classified."""
    import keras

    features = backbone.output
    if isinstance(features, dict):
        features = list(features.values())[-1]
    axes = tuple(range(1, len(features.shape) - 1))
    pooled = keras.ops.mean(features, axes)
    model = keras.Model(backbone.inputs, keras.layers.Dense(classes)(pooled))
    return classified(model, images)


def mmdit() -> Case:
    """Stable Diffusion 3's transformer, 6 of 24 blocks: two streams, one attention over both."""
    from keras_hub.src.models.stable_diffusion_3.mmdit import MMDiT

    batch, words = 64, 154
    model = model_of(
        MMDiT,
        patch_size=2,
        hidden_dim=1536,
        num_layers=6,
        num_heads=24,
        position_size=192,
        latent_shape=(64, 64, 16),
        context_shape=(words, 4096),
        pooled_projection_shape=(2048,),
    )

    def loss(weights: Any, rest: Any, key: Any, latents: Any, text: Any, pooled: Any) -> Any:
        noise_key, time_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, latents.shape, latents.dtype)
        time = jax.nn.sigmoid(jax.random.normal(time_key, (batch, 1), latents.dtype))
        share = time[:, :, None, None]
        inputs = {
            "latent": (1 - share) * latents + share * noise,
            "context": text,
            "pooled_projection": pooled,
            "timestep": 1000 * time,
        }
        found, _ = called(model, weights, rest, inputs)
        return jnp.mean((found.astype(jnp.float32) - (noise - latents)) ** 2)

    key = jax.eval_shape(lambda: jax.random.key(0))
    inputs = spec(batch, 64, 64, 16), spec(batch, words, 4096), spec(batch, 2048)
    return trained(model, loss, key, *inputs)


def vitdet() -> Case:
    """SAM's image encoder of the base size: attention in windows, relative positions, 4 global."""
    backbone = model_of(
        "ViTDetBackbone",
        hidden_size=768,
        num_layers=12,
        intermediate_dim=3072,
        num_heads=12,
        global_attention_layer_indices=[2, 5, 8, 11],
        image_shape=(1024, 1024, 3),
    )
    return _classes(backbone, (8, 1024, 1024, 3))


def hgnet() -> Case:
    """HGNetV2 B4: many small convolutions whose results are all joined."""
    backbone = model_of(
        "HGNetV2Backbone",
        depths=[1, 1, 3, 1],
        embedding_size=48,
        hidden_sizes=[128, 512, 1024, 2048],
        stem_channels=[3, 32, 48],
        hidden_act="relu",
        use_learnable_affine_block=False,
        stackwise_stage_filters=[
            (48, 48, 128, 1, 6, 3),
            (128, 96, 512, 1, 6, 3),
            (512, 192, 1024, 3, 6, 5),
            (1024, 384, 2048, 1, 6, 5),
        ],
        apply_downsample=[False, True, True, True],
        use_lightweight_conv_block=[False, False, True, True],
        image_shape=(224, 224, 3),
    )
    return _classes(backbone, (512, 224, 224, 3))


def darknet() -> Case:
    """CSPDarkNet 53: halves of the channels pass by each stage, leaky ReLUs."""
    backbone = model_of(
        "CSPNetBackbone",
        stem_filters=32,
        stem_kernel_size=3,
        stem_strides=1,
        stem_padding="same",
        stackwise_depth=[1, 2, 8, 8, 4],
        stackwise_strides=[2, 2, 2, 2, 2],
        stackwise_num_filters=[64, 128, 256, 512, 1024],
        block_type="dark_block",
        stage_type="csp",
        bottle_ratio=[0.5, 1.0],
        block_ratio=[1.0, 0.5],
        expand_ratio=[2.0, 1.0],
        down_growth=True,
        image_shape=(256, 256, 3),
    )
    return _classes(backbone, (512, 256, 256, 3))


def video_prism() -> Case:
    """VideoPrism base, 6 of 12 spatial and 2 of 4 temporal layers over 16 frames."""
    backbone = model_of(
        "VideoPrismBackbone",
        num_frames=16,
        patch_size=18,
        hidden_dim=768,
        intermediate_dim=3072,
        num_heads=12,
        num_spatial_layers=6,
        num_temporal_layers=2,
        num_auxiliary_layers=0,
        attention_logit_soft_cap=50.0,
        image_shape=(288, 288, 3),
    )
    return _classes(backbone, (16, 16, 288, 288, 3), 400)


def moonshine() -> Case:
    """Moonshine base, 4 + 4 of 8 + 8 layers: raw sound of 10 s through convolutions, words."""
    backbone = model_of(
        "MoonshineBackbone",
        vocabulary_size=32768,
        filter_dim=416,
        encoder_num_layers=4,
        decoder_num_layers=4,
        hidden_dim=416,
        intermediate_dim=1664,
        encoder_num_heads=8,
        decoder_num_heads=8,
    )
    batch, samples, words = 128, 160000, 64

    def loss(weights: Any, rest: Any, sound: Any, ids: Any) -> Any:
        inputs = {
            "encoder_input_values": sound,
            "encoder_padding_mask": jnp.ones(sound.shape[:2], bool),
            "decoder_token_ids": ids,
            "decoder_padding_mask": jnp.ones(ids.shape, bool),
        }
        outputs, _ = called(backbone, weights, rest, inputs)
        hidden = outputs["decoder_sequence_output"]
        table = next(w for w in weights if w.shape == (32768, 416))
        return cross_entropy(hidden[:, :-1] @ table.astype(hidden.dtype).T, ids[:, 1:])

    inputs = spec(batch, samples, 1), spec(batch, words, dtype=jnp.int32)
    return trained(backbone, loss, *inputs)


def gemma3() -> Case:
    """Gemma 3 4B, 6 of 34 layers: five with a window of 1,024 for one without, normed queries."""
    backbone = model_of(
        "Gemma3Backbone",
        vocabulary_size=262144,
        image_size=896,
        num_layers=6,
        num_query_heads=8,
        num_key_value_heads=4,
        hidden_dim=2560,
        intermediate_dim=10240,
        head_dim=256,
        use_post_ffw_norm=True,
        use_post_attention_norm=True,
        use_sliding_window_attention=True,
        sliding_window_size=1024,
        global_rope_scaling_factor=8.0,
    )
    return token_step(backbone, 16, 2048)


def gpt_neox() -> Case:
    """GPT-NeoX 6.9B (Pythia), 4 of 32 layers: attention beside the feed-forward layer."""
    backbone = model_of(
        "GPTNeoXBackbone",
        vocabulary_size=50432,
        num_layers=4,
        num_heads=32,
        hidden_dim=4096,
        intermediate_dim=16384,
        max_sequence_length=2048,
    )
    return token_step(backbone, 16, 2048)


def xlnet() -> Case:
    """XLNet large, 6 of 24 layers: contents and positions in attention, shifted."""
    backbone = model_of(
        "XLNetBackbone",
        vocabulary_size=32000,
        num_layers=6,
        num_heads=16,
        hidden_dim=1024,
        intermediate_dim=4096,
    )
    return token_step(backbone, 64, 512, "segment_ids")


def electra() -> Case:
    """ELECTRA large, 8 of 24 layers, embeddings as wide as the layers."""
    backbone = model_of(
        "ElectraBackbone",
        vocab_size=30522,
        num_layers=8,
        num_heads=16,
        hidden_dim=1024,
        embedding_dim=1024,
        intermediate_dim=4096,
        dropout=0.0,
    )
    return token_step(backbone, 64, 512, "segment_ids")


def t5_gemma() -> Case:
    """T5Gemma 2B-2B, 3 + 3 of 26 + 26 layers: windows, capped logits, two inputs to attention."""
    sizes = dict(hidden_dim=2304, intermediate_dim=9216, num_layers=3, head_dim=256)
    heads = dict(num_attention_heads=8, num_key_value_heads=4)
    layers = ["sliding_attention", "full_attention", "sliding_attention"]
    backbone = model_of(
        "T5GemmaBackbone",
        vocabulary_size=256000,
        **{
            f"{side}_{name}": size
            for side in ("encoder", "decoder")
            for name, size in {**sizes, **heads, "layer_types": layers}.items()
        },
        query_pre_attn_scalar=256,
        sliding_window=4096,
        cross_attention_hidden_size=2304,
        attn_logit_softcapping=50.0,
    )

    def loss(weights: Any, rest: Any, ids: Any, labels: Any) -> Any:
        inputs = {
            "encoder_token_ids": ids,
            "encoder_padding_mask": jnp.ones_like(ids),
            "decoder_token_ids": labels,
            "decoder_padding_mask": jnp.ones_like(labels),
        }
        outputs, _ = called(backbone, weights, rest, inputs)
        hidden = outputs["decoder_sequence_output"]
        table = next(w for w in weights if w.shape == (256000, 2304))
        return cross_entropy(hidden[:, :-1] @ table.astype(hidden.dtype).T, labels[:, 1:])

    ids, labels = spec(32, 1024, dtype=jnp.int32), spec(32, 512, dtype=jnp.int32)
    return trained(backbone, loss, ids, labels)


def smollm3() -> Case:
    """SmolLM3 3B, 8 of 36 layers: grouped queries, each fourth layer without positions."""
    backbone = model_of(
        "SmolLM3Backbone",
        vocabulary_size=128256,
        hidden_dim=2048,
        intermediate_dim=11008,
        num_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
        attention_bias=False,
        attention_dropout=0.0,
        rope_layer_enabled_list=[True, True, True, False] * 2,
        layer_types=["full_attention"] * 8,
        mlp_bias=False,
        layer_norm_epsilon=1e-6,
        max_position_embeddings=65536,
        rope_theta=5000000.0,
        partial_rotary_factor=1.0,
    )
    return token_step(backbone, 16, 2048)


KERAS_MEDIA: dict[str, Callable[[], Case]] = {
    "mmdit, 6 blocks": mmdit,
    "sam image encoder base": vitdet,
    "hgnet v2 b4": hgnet,
    "csp darknet 53": darknet,
    "video prism base, 6 + 2 layers": video_prism,
    "moonshine base, 4 + 4 layers": moonshine,
    "gemma3 4B, 6 layers": gemma3,
    "gpt-neox 6.9B, 4 layers": gpt_neox,
    "xlnet large, 6 layers": xlnet,
    "electra large, 8 layers": electra,
    "t5 gemma 2B, 3 + 3 layers": t5_gemma,
    "smollm3 3B, 8 layers": smollm3,
}
"""By name."""
