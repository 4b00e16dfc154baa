"""Train and decode steps of models as their packages define them, lowered from shapes alone.

    python -m bench.programs.published NAME [--output FILE.mlirbc]

The models are those of transformers, keras and keras-hub, none of them written here, at published
widths with fewer layers where that saves the compilers' time. Each needs its package:
``pip install "transformers<5" keras keras-hub optax``.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bench.programs.keras_steps import cross_entropy
from bench.programs.published_keras import KERAS
from bench.programs.published_keras_media import KERAS_MEDIA
from bench.programs.storage import Case, spec, train

# transformers


def _flax_model(kind: str, config: Any) -> tuple[Any, Any]:
    """A flax model of transformers and the shapes of its parameters."""
    import transformers

    model = getattr(transformers, kind)(config, dtype=jnp.bfloat16, _do_init=False)
    return model, jax.eval_shape(lambda key: model.init_weights(key, model.input_shape), _key())


def _key() -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda: jax.random.key(0))


def language_model(kind: str, config: Any, batch: int, tokens: int) -> Case:
    """A decoder's train step with AdamW and a clip of the global norm."""
    model, params = _flax_model(kind, config)

    def loss(params: Any, ids: Any) -> Any:
        mask = jnp.ones_like(ids)
        positions = jnp.broadcast_to(jnp.arange(tokens), ids.shape)
        logits = model.module.apply({"params": params}, ids, mask, positions).logits
        return cross_entropy(logits[:, :-1], ids[:, 1:])

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-4))
    return train(loss, params, spec(batch, tokens, dtype=jnp.int32), optimizer=optimizer)


def mistral() -> Case:
    """Mistral 7B's layers, grouped queries and a sliding window; 4 of 32."""
    from transformers import MistralConfig

    config = MistralConfig(num_hidden_layers=4, max_position_embeddings=4096)
    return language_model("FlaxMistralForCausalLM", config, 32, 4096)


def opt() -> Case:
    """OPT 1.3B, 6 of 24 layers."""
    from transformers import OPTConfig

    config = OPTConfig(
        hidden_size=2048,
        num_hidden_layers=6,
        num_attention_heads=32,
        ffn_dim=8192,
        word_embed_proj_dim=2048,
    )
    return language_model("FlaxOPTForCausalLM", config, 64, 2048)


def bart() -> Case:
    """BART large's layers, 4 of 12 in encoder and decoder each, 1,024 tokens in and 256 out."""
    from transformers import BartConfig

    model, params = _flax_model(
        "FlaxBartForConditionalGeneration", BartConfig(encoder_layers=4, decoder_layers=4)
    )

    def loss(params: Any, key: Any, ids: Any, labels: Any) -> Any:
        shifted = jnp.pad(labels[:, :-1], ((0, 0), (1, 0)))
        places = (jnp.broadcast_to(jnp.arange(each.shape[1]), each.shape) for each in (ids, labels))
        positions, decoder_positions = places
        logits = model.module.apply(
            {"params": params},
            ids,
            jnp.ones_like(ids),
            shifted,
            jnp.ones_like(shifted),
            positions,
            decoder_positions,
            deterministic=False,
            rngs={"dropout": key},
        ).logits
        return cross_entropy(logits, labels)

    ids, labels = spec(128, 1024, dtype=jnp.int32), spec(128, 256, dtype=jnp.int32)
    return train(loss, params, _key(), ids, labels, optimizer=optax.adafactor(1e-3))


def whisper() -> Case:
    """Whisper small: convolutions over a spectrogram, encoder, decoder; 6 of 12 layers each."""
    from transformers import WhisperConfig

    config = WhisperConfig(
        d_model=768,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=12,
        decoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_ffn_dim=3072,
    )
    model, params = _flax_model("FlaxWhisperForConditionalGeneration", config)

    def loss(params: Any, features: Any, labels: Any) -> Any:
        shifted = jnp.pad(labels[:, :-1], ((0, 0), (1, 0)))
        positions = jnp.broadcast_to(jnp.arange(labels.shape[1]), labels.shape)
        logits = model.module.apply(
            {"params": params},
            features,
            decoder_input_ids=shifted,
            decoder_attention_mask=jnp.ones_like(shifted),
            decoder_position_ids=positions,
        ).logits
        return cross_entropy(logits, labels)

    features, labels = spec(128, 80, 3000, dtype=jnp.bfloat16), spec(128, 448, dtype=jnp.int32)
    return train(loss, params, features, labels, optimizer=optax.adamw(1e-4))


def gpt_j() -> Case:
    """GPT-J 6B, 4 of 28 layers: attention and feed-forward side by side, rotated halves."""
    from transformers import GPTJConfig

    return language_model("FlaxGPTJForCausalLM", GPTJConfig(n_layer=4), 32, 2048)


def roberta(layers: int = 8, batch: int = 256) -> Case:
    """RoBERTa large, 8 of 24 layers, a masked language model whose head is tied."""
    from transformers import RobertaConfig

    config = RobertaConfig(
        vocab_size=50265,
        hidden_size=1024,
        num_hidden_layers=layers,
        num_attention_heads=16,
        intermediate_size=4096,
        max_position_embeddings=514,
    )
    model, params = _flax_model("FlaxRobertaForMaskedLM", config)

    def loss(params: Any, key: Any, ids: Any, labels: Any) -> Any:
        logits = model.module.apply(
            {"params": params},
            ids,
            jnp.ones_like(ids),
            jnp.zeros_like(ids),
            jnp.broadcast_to(jnp.arange(ids.shape[1]) + 2, ids.shape),
            None,
            deterministic=False,
            rngs={"dropout": key},
        ).logits
        return cross_entropy(logits, labels)

    ids = spec(batch, 512, dtype=jnp.int32)
    return train(loss, params, _key(), ids, ids, optimizer=optax.lamb(1e-3))


def bloom() -> Case:
    """BLOOM 1.7B, 6 of 24 layers, with biases by distance in place of positions."""
    from transformers import BloomConfig

    config = BloomConfig(hidden_size=2048, n_layer=6, n_head=16)
    model, params = _flax_model("FlaxBloomForCausalLM", config)

    def loss(params: Any, ids: Any) -> Any:
        logits = model.module.apply({"params": params}, ids, jnp.ones_like(ids)).logits
        return cross_entropy(logits[:, :-1], ids[:, 1:])

    return train(loss, params, spec(64, 2048, dtype=jnp.int32), optimizer=optax.adamw(1e-4))


def clip() -> Case:
    """CLIP ViT-B/32 with all its layers: each image against each text of the whole batch."""
    from transformers import CLIPConfig

    model, params = _flax_model("FlaxCLIPModel", CLIPConfig())

    def loss(params: Any, images: Any, ids: Any) -> Any:
        positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        logits = model.module.apply(
            {"params": params}, ids, images, jnp.ones_like(ids), positions
        ).logits_per_text
        pairs = jnp.arange(ids.shape[0])
        return (cross_entropy(logits, pairs) + cross_entropy(logits.T, pairs)) / 2

    images, ids = spec(2048, 224, 224, 3, dtype=jnp.bfloat16), spec(2048, 77, dtype=jnp.int32)
    return train(loss, params, images, ids, optimizer=optax.adamw(1e-4))


def gemma() -> Case:
    """Gemma 2B, 4 of 18 layers: one head of keys and values, a vocabulary of 256,000."""
    from transformers import GemmaConfig

    config = GemmaConfig(
        hidden_size=2048,
        intermediate_size=16384,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=1,
    )
    return language_model("FlaxGemmaForCausalLM", config, 32, 2048)


def xglm() -> Case:
    """XGLM 564M, 6 of 24 layers: sines for positions, a vocabulary of 256,008."""
    from transformers import XGLMConfig

    config = XGLMConfig(num_layers=6, dropout=0.0, attention_dropout=0.0)
    return language_model("FlaxXGLMForCausalLM", config, 32, 1024)


def gpt_neo() -> Case:
    """GPT-Neo 1.3B, 6 of 24 layers: whole and local attention by turns."""
    from transformers import GPTNeoConfig

    config = GPTNeoConfig(num_layers=6, attention_types=[[["global", "local"], 3]])
    return language_model("FlaxGPTNeoForCausalLM", config, 64, 2048)


def albert() -> Case:
    """ALBERT xxlarge: 4 of 12 passes through one layer of 4,096 features, LAMB."""
    from transformers import AlbertConfig

    model, params = _flax_model("FlaxAlbertForMaskedLM", AlbertConfig(num_hidden_layers=4))

    def loss(params: Any, ids: Any, labels: Any) -> Any:
        logits = model.module.apply(
            {"params": params},
            ids,
            jnp.ones_like(ids),
            jnp.zeros_like(ids),
            jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape),
        ).logits
        return cross_entropy(logits, labels)

    ids = spec(128, 512, dtype=jnp.int32)
    return train(loss, params, ids, ids, optimizer=optax.lamb(1e-3))


def _image_transformer(kind: str, config: Any) -> Case:
    """A classifier's train step with dropout and stochastic depth, 512 images of 224 x 224."""
    model, params = _flax_model(kind, config)

    def loss(params: Any, key: Any, images: Any, labels: Any) -> Any:
        dropout, path = jax.random.split(key)
        logits = model.module.apply(
            {"params": params},
            images,
            deterministic=False,
            rngs={"dropout": dropout, "droppath": path},
        ).logits
        return cross_entropy(logits, labels)

    images, labels = spec(512, 224, 224, 3, dtype=jnp.bfloat16), spec(512, dtype=jnp.int32)
    return train(loss, params, _key(), images, labels, optimizer=optax.adamw(1e-4))


def beit() -> Case:
    """BEiT large, 8 of 24 layers: tables of relative positions, stochastic depth."""
    from transformers import BeitConfig

    config = BeitConfig(
        hidden_size=1024,
        num_hidden_layers=8,
        num_attention_heads=16,
        intermediate_size=4096,
        use_relative_position_bias=True,
        num_labels=1000,
    )
    return _image_transformer("FlaxBeitForImageClassification", config)


def dinov2() -> Case:
    """DINOv2 base, 6 of 12 layers: residuals scaled by feature, stochastic depth."""
    from transformers import Dinov2Config

    config = Dinov2Config(num_hidden_layers=6, image_size=224, drop_path_rate=0.1, num_labels=1000)
    return _image_transformer("FlaxDinov2ForImageClassification", config)


def wav2vec2() -> Case:
    """Wav2Vec 2.0 base, 6 of 12 layers, fine-tuned by frames: convolutions over five seconds."""
    from transformers import Wav2Vec2Config

    config = Wav2Vec2Config(
        num_hidden_layers=6, do_stable_layer_norm=True, feat_extract_norm="layer"
    )
    model, params = _flax_model("FlaxWav2Vec2ForCTC", config)

    def loss(params: Any, key: Any, waves: Any, labels: Any, padding: Any) -> Any:
        dropout, layers = jax.random.split(key)
        logits = model.module.apply(
            {"params": params},
            waves,
            jnp.ones(waves.shape, jnp.int32),
            deterministic=False,
            return_dict=False,
            rngs={"dropout": dropout, "layerdrop": layers},
        )[0].astype(jnp.float32)
        return jnp.mean(optax.ctc_loss(logits, jnp.zeros(logits.shape[:2]), labels, padding))

    waves, labels = spec(64, 80000, dtype=jnp.bfloat16), spec(64, 60, dtype=jnp.int32)
    return train(loss, params, _key(), waves, labels, spec(64, 60), optimizer=optax.adamw(1e-4))


def mistral_decode() -> Case:
    """One token of Mistral 7B's layers (8 of 32) with a cache of 4,096 for each of 64 sequences."""
    from transformers import MistralConfig

    config = MistralConfig(num_hidden_layers=8, max_position_embeddings=4096)
    model, params = _flax_model("FlaxMistralForCausalLM", config)
    params = jax.tree.map(lambda p: spec(*p.shape, dtype=jnp.bfloat16), params)
    cache = jax.eval_shape(functools.partial(model.init_cache, 64, 4096))

    def step(params: Any, cache: Any, ids: Any, mask: Any, positions: Any) -> Any:
        outputs, changed = model.module.apply(
            {"params": params, "cache": cache}, ids, mask, positions, mutable=["cache"]
        )
        return jnp.argmax(outputs.logits[:, -1], -1), changed["cache"]

    one = spec(64, 1, dtype=jnp.int32)
    return step, (params, cache, one, spec(64, 4096, dtype=jnp.int32), one), (1,)


def bigbird(batch: int = 32, tokens: int = 2048) -> Case:
    """BigBird base, 6 of 12 layers: attention to neighbours, a few whole blocks and random ones."""
    from transformers import BigBirdConfig

    config = BigBirdConfig(num_hidden_layers=6, max_position_embeddings=4096)
    model, params = _flax_model("FlaxBigBirdForMaskedLM", config)

    def loss(params: Any, key: Any, ids: Any, labels: Any) -> Any:
        dropout, indices = jax.random.split(key)
        logits = model.module.apply(
            {"params": params},
            ids,
            jnp.ones_like(ids),
            jnp.zeros_like(ids),
            jnp.broadcast_to(jnp.arange(tokens), ids.shape),
            jnp.ones((config.num_hidden_layers, config.num_attention_heads)),
            deterministic=False,
            rngs={"dropout": dropout, "indices": indices},
        ).logits
        return cross_entropy(logits, labels)

    ids = spec(batch, tokens, dtype=jnp.int32)
    return train(loss, params, _key(), ids, ids, optimizer=optax.adamw(1e-4))


def regnet() -> Case:
    """RegNetY 16 GF: grouped convolutions with squeezed gates."""
    from transformers import RegNetConfig

    config = RegNetConfig(
        hidden_sizes=[224, 448, 1232, 3024], depths=[2, 4, 11, 1], groups_width=112, num_labels=1000
    )
    import transformers

    model = transformers.FlaxRegNetForImageClassification(
        config, dtype=jnp.bfloat16, _do_init=False
    )
    variables = jax.eval_shape(lambda key: model.init_weights(key, model.input_shape), _key())
    optimizer = optax.sgd(0.1, momentum=0.9)

    def loss(params: Any, statistics: Any, images: Any, labels: Any) -> Any:
        outputs, changed = model.module.apply(
            {"params": params, "batch_stats": statistics},
            images,
            deterministic=False,
            mutable=["batch_stats"],
        )
        return cross_entropy(outputs.logits, labels), changed["batch_stats"]

    def step(params: Any, state: Any, statistics: Any, images: Any, labels: Any) -> Any:
        (value, statistics), gradients = jax.value_and_grad(loss, has_aux=True)(
            params, statistics, images, labels
        )
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, statistics, value

    params = variables["params"]
    state = jax.eval_shape(optimizer.init, params)
    images, labels = spec(512, 224, 224, 3, dtype=jnp.bfloat16), spec(512, dtype=jnp.int32)
    return step, (params, state, variables["batch_stats"], images, labels), (0, 1)


PUBLISHED: dict[str, Callable[[], Case]] = {
    **KERAS,
    **KERAS_MEDIA,
    "mistral 7B, 4 layers": mistral,
    "mistral 7B decode, 8 layers": mistral_decode,
    "opt 1.3B, 6 layers": opt,
    "bart large, 4 + 4 layers": bart,
    "whisper small, 6 + 6 layers": whisper,
    "gpt-j 6B, 4 layers": gpt_j,
    "roberta large, 8 layers": roberta,
    "bloom 1.7B, 6 layers": bloom,
    "clip b/32": clip,
    "gemma 2B, 4 layers": gemma,
    "gpt-neo 1.3B, 6 layers": gpt_neo,
    "albert xxlarge, 4 passes": albert,
    "beit large, 8 layers": beit,
    "wav2vec2 base, 6 layers": wav2vec2,
    "xglm 564M, 6 layers": xglm,
    "dinov2 base, 6 layers": dinov2,
    "bigbird base, 6 layers": bigbird,
    "regnet y 16 GF": regnet,
}
"""By name."""


def main() -> None:
    from bench.common.sources import of_case

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=list(PUBLISHED))
    parser.add_argument("--output", type=Path, help="where to write the bytecode")
    options = parser.parse_args()
    from autoshard.ir.module import print_module

    module, arguments = of_case(PUBLISHED[options.name]())
    print(f"{options.name}: {len(arguments)} arguments")
    if options.output:
        options.output.write_bytes(print_module(module, "bytecode"))


if __name__ == "__main__":
    main()
