"""Train steps of models of keras and keras-hub as these packages define them, from shapes alone.

Published widths, with fewer layers where that saves the compilers' time, in mixed precision.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bench.programs.keras_steps import (
    called,
    classified,
    cross_entropy,
    model_of,
    token_step,
    trained,
)
from bench.programs.storage import Case, spec, train


def application(name: str, batch: int, size: int) -> Case:
    """An image classifier of keras.applications in mixed precision."""
    os.environ["KERAS_BACKEND"] = "jax"
    import keras

    keras.config.set_dtype_policy("mixed_bfloat16")
    model = getattr(keras.applications, name)(
        weights=None, classifier_activation=None, input_shape=(size, size, 3)
    )
    return classified(model, (batch, size, size, 3))


def deberta() -> Case:
    """DeBERTa v3 base, 6 of 12 layers: attention to contents and to relative positions."""
    backbone = model_of(
        "DebertaV3Backbone",
        vocabulary_size=128100,
        num_layers=6,
        num_heads=12,
        hidden_dim=768,
        intermediate_dim=3072,
    )
    return token_step(backbone, 64, 512)


def t5() -> Case:
    """T5 large, 4 of 24 layers in encoder and decoder each: buckets of distances, Adafactor."""
    backbone = model_of(
        "T5Backbone",
        vocabulary_size=32128,
        num_layers=4,
        num_heads=16,
        hidden_dim=1024,
        intermediate_dim=4096,
        key_value_dim=64,
        dropout=0.0,
    )

    def loss(weights: Any, rest: Any, ids: Any, labels: Any) -> Any:
        shifted = jnp.pad(labels[:, :-1], ((0, 0), (1, 0)))
        inputs = {
            "encoder_token_ids": ids,
            "encoder_padding_mask": jnp.ones_like(ids),
            "decoder_token_ids": shifted,
            "decoder_padding_mask": jnp.ones_like(shifted),
        }
        outputs, _ = called(backbone, weights, rest, inputs)
        hidden = outputs["decoder_sequence_output"]
        return cross_entropy(hidden @ weights[0].astype(hidden.dtype).T, labels)

    weights = [spec(*v.shape) for v in backbone.trainable_variables]
    rest = [spec(*v.shape, dtype=v.dtype) for v in backbone.non_trainable_variables]
    ids, labels = spec(128, 512, dtype=jnp.int32), spec(128, 128, dtype=jnp.int32)
    return train(loss, weights, rest, ids, labels, optimizer=optax.adafactor(1e-3))


def falcon() -> Case:
    """Falcon 1B, 6 of 24 layers: a head of keys and values each, biases by distance."""
    backbone = model_of(
        "FalconBackbone",
        vocabulary_size=50304,
        num_layers=6,
        num_attention_heads=32,
        hidden_dim=2048,
        intermediate_dim=8192,
    )
    return token_step(backbone, 32, 1024)


def distilbert() -> Case:
    """DistilBERT base: 6 layers, norms behind the residuals, exact GELUs."""
    backbone = model_of(
        "DistilBertBackbone",
        vocabulary_size=30522,
        num_layers=6,
        num_heads=12,
        hidden_dim=768,
        intermediate_dim=3072,
        dropout=0.0,
        max_sequence_length=512,
    )
    return token_step(backbone, 128, 512)


def phi3() -> Case:
    """Phi-3 mini, 4 of 32 layers: queries, keys and values in one product each, gated SiLU."""
    backbone = model_of(
        "Phi3Backbone",
        vocabulary_size=32064,
        num_layers=4,
        hidden_dim=3072,
        intermediate_dim=8192,
        num_query_heads=32,
        num_key_value_heads=32,
    )
    return token_step(backbone, 16, 2048)


def qwen_moe() -> Case:
    """Qwen3's layers with experts, 2 of 48 and 32 of 128, each token to 8."""
    backbone = model_of(
        "Qwen3MoeBackbone",
        vocabulary_size=32000,
        num_layers=2,
        num_query_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        hidden_dim=2048,
        intermediate_dim=6144,
        moe_intermediate_dim=768,
        num_experts=32,
        top_k=8,
        norm_top_k_prob=True,
    )
    return token_step(backbone, 16, 2048)


def swin() -> Case:
    """Swin tiny: attention in shifted windows, merged patches."""
    import keras

    backbone = model_of(
        "SwinTransformerBackbone",
        image_shape=(224, 224, 3),
        embed_dim=96,
        depths=(2, 2, 6, 2),
        num_heads=(3, 6, 12, 24),
        window_size=7,
    )
    pooled = keras.layers.GlobalAveragePooling1D()(
        keras.layers.Reshape((-1, backbone.output.shape[-1]))(backbone.output)
    )
    model = keras.Model(backbone.inputs, keras.layers.Dense(1000)(pooled))
    return classified(model, (512, 224, 224, 3))


def llama3() -> Case:
    """Llama 3 8B, 4 of 32 layers: grouped queries, a vocabulary of 128,256."""
    backbone = model_of(
        "Llama3Backbone",
        vocabulary_size=128256,
        num_layers=4,
        num_query_heads=32,
        num_key_value_heads=8,
        hidden_dim=4096,
        intermediate_dim=14336,
        rope_max_wavelength=500000,
    )
    return token_step(backbone, 16, 2048)


def gpt_oss() -> Case:
    """GPT-OSS 20B, 2 of 24 layers with 32 experts, each token to 4; attention with sinks."""
    backbone = model_of(
        "GptOssBackbone",
        vocabulary_size=201088,
        num_layers=2,
        num_query_heads=64,
        num_key_value_heads=8,
        head_dim=64,
        hidden_dim=2880,
        intermediate_dim=2880,
        num_experts=32,
        top_k=4,
        sliding_window=128,
    )
    return token_step(backbone, 16, 2048)


def rwkv7() -> Case:
    """RWKV-7 1.5B, 4 of 24 layers: a recurrence over chunks in place of attention."""
    backbone = model_of(
        "RWKV7Backbone",
        hidden_size=2048,
        head_size=64,
        num_layers=4,
        vocabulary_size=65536,
        intermediate_dim=8192,
    )

    def loss(weights: Any, rest: Any, ids: Any) -> Any:
        inputs = {"token_ids": ids, "padding_mask": jnp.ones_like(ids)}
        logits, _ = called(backbone, weights, rest, inputs)
        return cross_entropy(logits[:, :-1], ids[:, 1:])

    return trained(backbone, loss, spec(32, 1024, dtype=jnp.int32))


def esm2() -> Case:
    """ESM-2 650M, 8 of 33 layers over proteins: rotated positions, 33 tokens."""
    backbone = model_of(
        "ESM2Backbone",
        vocabulary_size=33,
        num_layers=8,
        num_heads=20,
        hidden_dim=1280,
        intermediate_dim=5120,
        dropout=0.0,
        use_pre_layer_norm=True,
        max_sequence_length=1024,
    )
    return token_step(backbone, 64, 1024)


def fnet() -> Case:
    """FNet large, 8 of 24 layers: Fourier transforms in place of attention."""
    backbone = model_of(
        "FNetBackbone",
        vocabulary_size=32000,
        num_layers=8,
        hidden_dim=1024,
        intermediate_dim=4096,
        dropout=0.0,
    )

    def loss(weights: Any, rest: Any, ids: Any) -> Any:
        inputs = {"token_ids": ids, "segment_ids": jnp.zeros_like(ids)}
        outputs, _ = called(backbone, weights, rest, inputs)
        hidden = outputs["sequence_output"]
        table = weights[0].astype(hidden.dtype)
        return cross_entropy(hidden @ table.T, ids)

    return trained(backbone, loss, spec(256, 512, dtype=jnp.int32))


def flux() -> Case:
    """Flux, 2 of 19 double and 4 of 38 single blocks, flow matching on latents of 1,024 tokens."""
    batch, tokens, words = 32, 1024, 256
    model = model_of(
        "FluxBackbone",
        input_channels=64,
        hidden_size=3072,
        mlp_ratio=4.0,
        num_heads=24,
        depth=2,
        depth_single_blocks=4,
        axes_dim=(16, 56, 56),
        theta=10000,
        use_bias=True,
        guidance_embed=True,
        image_shape=(tokens, 64),
        text_shape=(words, 4096),
        image_ids_shape=(tokens, 3),
        text_ids_shape=(words, 3),
        y_shape=(768,),
    )

    def loss(weights: Any, rest: Any, key: Any, latents: Any, text: Any, pooled: Any) -> Any:
        noise_key, time_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, latents.shape, latents.dtype)
        time = jax.random.uniform(time_key, (batch,), latents.dtype)
        inputs = {
            "image": latents + time[:, None, None] * (noise - latents),
            "image_ids": jnp.zeros((batch, tokens, 3), jnp.float32),
            "text": text,
            "text_ids": jnp.zeros((batch, words, 3), jnp.float32),
            "y": pooled,
            "timesteps": time,
            "guidance": jnp.ones((batch,), latents.dtype),
        }
        found, _ = called(model, weights, rest, inputs)
        return jnp.mean((found.astype(jnp.float32) - (noise - latents)) ** 2)

    key = jax.eval_shape(lambda: jax.random.key(0))
    texts = spec(batch, words, 4096), spec(batch, 768)
    return trained(model, loss, key, spec(batch, tokens, 64), *texts)


def segformer() -> Case:
    """SegFormer with a MiT-B2: attention to fewer keys, a class for each pixel."""
    import keras

    encoder = model_of(
        "MiTBackbone",
        layerwise_depths=[3, 4, 6, 3],
        num_layers=4,
        hidden_dims=[64, 128, 320, 512],
        layerwise_num_heads=[1, 2, 5, 8],
        layerwise_sr_ratios=[8, 4, 2, 1],
        max_drop_path_rate=0.1,
        layerwise_patch_sizes=[7, 3, 3, 3],
        layerwise_strides=[4, 2, 2, 2],
        image_shape=(512, 512, 3),
    )
    backbone = model_of("SegFormerBackbone", image_encoder=encoder, projection_filters=768)
    classes = keras.layers.Conv2D(150, 1)(backbone.output)
    model = keras.Model(backbone.inputs, classes)
    batch, (height, width) = 64, classes.shape[1:3]
    return classified(model, (batch, 512, 512, 3), (batch, height, width))


def vgg() -> Case:
    """VGG 16 with the two wide layers behind it."""
    import keras

    backbone = model_of(
        "VGGBackbone",
        stackwise_num_repeats=[2, 2, 3, 3, 3],
        stackwise_num_filters=[64, 128, 256, 512, 512],
        image_shape=(224, 224, 3),
    )
    hidden = keras.layers.Flatten()(backbone.output)
    for _ in range(2):
        hidden = keras.layers.Dense(4096, activation="relu")(hidden)
    model = keras.Model(backbone.inputs, keras.layers.Dense(1000)(hidden))
    return classified(model, (512, 224, 224, 3))


def qwen_hybrid_moe() -> Case:
    """Qwen 3.5's layers with experts, 4 of 40 and 64 of 256: three linear attentions, one whole."""
    backbone = model_of(
        "Qwen3_5MoeBackbone",
        vocabulary_size=32000,
        num_layers=4,
        num_query_heads=16,
        num_key_value_heads=2,
        head_dim=256,
        hidden_dim=2048,
        moe_intermediate_dim=512,
        shared_expert_intermediate_size=512,
        num_experts=64,
        top_k=8,
    )
    return token_step(backbone, 8, 2048)


KERAS: dict[str, Callable[[], Case]] = {
    "resnet 50": functools.partial(application, "ResNet50", 1024, 224),
    "densenet 121": functools.partial(application, "DenseNet121", 512, 224),
    "efficientnet v2 s": functools.partial(application, "EfficientNetV2S", 512, 300),
    "convnext tiny": functools.partial(application, "ConvNeXtTiny", 512, 224),
    "deberta v3 base, 6 layers": deberta,
    "qwen3 moe, 2 layers": qwen_moe,
    "swin tiny": swin,
    "t5 large, 4 + 4 layers": t5,
    "falcon 1B, 6 layers": falcon,
    "mobilenet v2": functools.partial(application, "MobileNetV2", 1024, 224),
    "distilbert base": distilbert,
    "inception v3": functools.partial(application, "InceptionV3", 512, 299),
    "xception": functools.partial(application, "Xception", 256, 299),
    "phi3 mini, 4 layers": phi3,
    "llama3 8B, 4 layers": llama3,
    "gpt-oss 20B, 2 layers": gpt_oss,
    "rwkv7 1.5B, 4 layers": rwkv7,
    "esm2 650M, 8 layers": esm2,
    "fnet large, 8 layers": fnet,
    "flux, 2 + 4 blocks": flux,
    "segformer b2": segformer,
    "vgg 16": vgg,
    "qwen3.5 moe, 4 layers": qwen_hybrid_moe,
    "efficientnet b0": functools.partial(application, "EfficientNetB0", 1024, 224),
    "nasnet mobile": functools.partial(application, "NASNetMobile", 512, 224),
}
"""By name."""
