"""Steps over micro-batches compute what they compute over the whole batch."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import splash_attention

from autoshard.errors import PlanError
from autoshard.ir import new_context, parse_bytes
from autoshard.ir.compile import compile_module
from autoshard.ir.module import operations_of
from autoshard.kernels.mosaic import is_tpu_kernel, kernel_of
from autoshard.passes.micro_batch import MicroBatch
from autoshard.passes.pipeline import run_passes

BATCH, TOKENS, WIDTH, WORDS = 8, 4, 6, 10


def whole_numbers(shape, seed, low=-2, high=3):
    """Small ones as floats: their sums are exact in any order."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.float32)


def module_of(function, arguments):
    """As lowered, with locations."""
    lowered = jax.jit(function, keep_unused=True).lower(*arguments)
    text = lowered.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=True)
    return parse_bytes(text.encode(), new_context())


def micro_batched(function, arguments, batch, count, **options):
    """The module with ``count`` micro-batches; ``batch``: positional arguments that hold it."""
    counts = [len(jax.tree.leaves(argument)) for argument in arguments]
    numbers = [
        sum(counts[:position]) + leaf for position in batch for leaf in range(counts[position])
    ]
    module = module_of(function, arguments)
    run_passes(module, [MicroBatch(micro_batches=count, batch=tuple(numbers), **options)])
    return module


def run_over(function, arguments, batch, count, **options):
    """Flat results, and the module as text."""
    module = micro_batched(function, arguments, batch, count, **options)
    compiled = compile_module(module, jax.devices()[:1])
    return compiled.run(*map(np.asarray, jax.tree.leaves(arguments))), str(module)


def check_equal(function, arguments, batch, count, *, exact=True, **options):
    """Against the whole batch."""
    found, text = run_over(function, arguments, batch, count, **options)
    wanted = jax.tree.leaves(jax.jit(function)(*arguments))
    assert text.count("stablehlo.while") >= 1
    for ours, theirs in zip(found, wanted, strict=True):
        if exact:
            np.testing.assert_array_equal(ours, theirs)
        else:
            np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=1e-6)
    return text


def squares(params, x, y):
    hidden = jnp.maximum(x @ params["a"], 0)
    return jnp.sum((hidden @ params["b"] - y) ** 2)


def sgd(loss):
    def step(params, *batch):
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - g, params, gradients), value

    return step


@cache
def dense():
    """Weights and a batch of whole numbers."""
    params = {"a": whole_numbers((4, 6), 0), "b": whole_numbers((6, 2), 1)}
    return params, whole_numbers((BATCH, 4), 2), whole_numbers((BATCH, 2), 3)


def test_gradients_of_whole_numbers_are_bit_equal():
    check_equal(sgd(squares), dense(), [1, 2], BATCH)


def test_tokens_that_a_mask_leaves_are_counted_over_the_whole_batch():
    def loss(params, x, y, mask):
        errors = jnp.sum((x @ params["a"] @ params["b"] - y) ** 2, 1)
        return jnp.sum(errors * mask) / jnp.sum(mask)

    mask = np.array([1, 0, 1, 1, 0, 0, 1, 0], np.float32)  # 4 of 8: a power of two
    check_equal(sgd(loss), (*dense(), mask), [1, 2, 3], 4)


def test_results_of_each_example_are_put_in_their_order():
    def forward(params, x):
        return x @ params["a"], jnp.sum(x, 0)

    check_equal(forward, dense()[:2], [1], 4)


def test_loops_whose_results_are_returned_add_up_from_what_they_begin_with():
    def step(start, x):
        def layer(carried, _):
            hidden, total = carried
            return (hidden + 1, total + jnp.sum(hidden) + start), None

        return jax.lax.scan(layer, (x, start), length=3)[0]

    check_equal(step, (np.float32(5), whole_numbers((BATCH, 2), 1)), [1], 4)


def test_a_batch_that_is_flattened_with_its_tokens_is_cut_in_the_middle():
    def loss(weight, x, bias):
        rows = x.reshape(BATCH * TOKENS, WIDTH) @ weight + bias
        return jnp.sum(rows.reshape(BATCH, TOKENS, WIDTH)[:, 1:] ** 2)

    arguments = (
        whole_numbers((WIDTH, WIDTH), 0),
        whole_numbers((BATCH, TOKENS, WIDTH), 1),
        whole_numbers((BATCH * TOKENS, WIDTH), 2),
    )
    check_equal(jax.value_and_grad(loss), arguments, [1], 4)


def model(params, words, key, *, scans=True):
    """A residual network over tokens: tied embedding, dropout, layers that a scan runs."""
    hidden = params["embed"][words]

    def layer(hidden, each):
        weight, key = each
        kept = jax.random.bernoulli(key, 0.5, hidden.shape)
        return hidden + jnp.where(kept, jnp.maximum(hidden @ weight, 0), 0), None

    keys = jax.random.split(key, len(params["layers"]))
    if scans:
        hidden, _ = jax.lax.scan(layer, hidden, (params["layers"], keys))
    else:
        for number in range(len(params["layers"])):
            hidden, _ = layer(hidden, (params["layers"][number], keys[number]))
    return hidden @ params["embed"].T


@cache
def language():
    params = {
        "embed": whole_numbers((WORDS, WIDTH), 0, -1, 2),
        "layers": whole_numbers((3, WIDTH, WIDTH), 1, -1, 2),
    }
    return params, np.random.default_rng(2).integers(0, WORDS, (BATCH, TOKENS)), jax.random.key(3)


@pytest.mark.parametrize("scans", [True, False])
def test_a_network_with_dropout_and_a_tied_embedding_is_bit_equal(scans):
    params, words, key = language()

    def loss(params, words, data):
        logits = model(params, words, jax.random.wrap_key_data(data), scans=scans)
        return jnp.sum(logits * jnp.arange(WORDS))

    arguments = (params, words, jax.random.key_data(key))
    text = check_equal(sgd(loss), arguments, [1], 4)
    if not scans:  # dropout's bits are made for one micro-batch at a time
        assert f"tensor<{BATCH}x{TOKENS}x{WIDTH}xui32>" not in text


def test_adam_with_a_clip_and_masked_entropy_is_equal_in_float32():
    params, words, key = language()
    params = jax.tree.map(lambda p: p * 0.1, params)
    moments = jax.tree.map(np.zeros_like, (params, params))

    def loss(params, words, mask, data):
        logits = model(params, words, jax.random.wrap_key_data(data))
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), words[..., None], -1)[..., 0]
        return -jnp.sum(picked * mask) / jnp.sum(mask)

    def step(params, moments, words, mask, data):
        value, gradients = jax.value_and_grad(loss)(params, words, mask, data)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradients)))
        gradients = jax.tree.map(lambda g: g / jnp.maximum(norm, 1.0), gradients)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradients)
        second = jax.tree.map(lambda v, g: 0.9 * v + 0.1 * g**2, moments[1], gradients)
        params = jax.tree.map(
            lambda p, m, v: p - 1e-2 * m / (jnp.sqrt(v) + 1e-2), params, first, second
        )
        return params, (first, second), value

    mask = (np.arange(BATCH * TOKENS).reshape(BATCH, TOKENS) % 3 > 0).astype(np.float32)
    arguments = (params, moments, words, mask, jax.random.key_data(key))
    check_equal(step, arguments, [2, 3], 4, exact=False)


def test_gradients_that_are_widened_are_added_up_in_float32():
    def step(weight, x):
        gradient = jax.grad(lambda w: jnp.sum((x @ w).astype(jnp.float32)))(weight)
        return weight.astype(jnp.float32) - gradient.astype(jnp.float32)

    arguments = (jnp.ones((4, 2), jnp.bfloat16), jnp.ones((BATCH, 4), jnp.bfloat16))
    _, text = run_over(step, arguments, [1], 4)
    loop = next(line for line in text.splitlines() if "stablehlo.while" in line)
    assert "tensor<2x4xf32>" in loop or "tensor<4x2xf32>" in loop


def test_branches_are_taken_in_every_micro_batch():
    def loss(params, x, y, flag):
        hidden = jax.lax.cond(flag[0] > 0, lambda h: h * 2, lambda h: h + 1, x @ params["a"])
        return jnp.sum(hidden @ params["b"] - y)

    check_equal(sgd(loss), (*dense(), np.ones(1, np.int32)), [1, 2], 2)


def normalised(params, x, y):
    hidden = x @ params["a"]
    hidden = hidden - jnp.mean(hidden, 0)
    return jnp.sum((hidden @ params["b"] - y) ** 2)


def standardised(params, x, y):
    hidden = x @ params["a"]
    return jnp.sum((hidden / jnp.sqrt(jnp.var(hidden, 0) + 1)) @ params["b"] - y)


def contrastive(params, x, y):
    hidden = x @ params["a"]
    return jnp.sum(hidden @ hidden.T) + jnp.sum(y)


def largest(params, x, y):
    return jnp.max(jnp.sum((x @ params["a"] @ params["b"] - y) ** 2, 1))


def root_of_mean(params, x, y):
    return jnp.sqrt(squares(params, x, y) / BATCH)


@pytest.mark.parametrize(
    ("loss", "rule"),
    [
        (normalised, r"reduce adds up over the batch, and .* reads the sum before it is finished"),
        (standardised, r"adds up over .* give per_micro_batch=.\S*test_micro_batches.py:\d"),
        (contrastive, r"combines examples of the batch with one another"),
        (largest, r"reduces over the batch, and does not add"),
        (root_of_mean, r"reads the sum before it is finished.*dot_general.* leads to it"),
    ],
)
def test_what_is_not_the_same_is_refused_with_lines_and_a_way_out(loss, rule):
    with pytest.raises(PlanError, match=r"test_micro_batches.py:\d+.*" + rule) as error:
        run_over(sgd(loss), dense(), [1, 2], 2)
    assert "leave micro_batches" in str(error.value) or "accumulate_gradients" in str(error.value)


def twice_standardised(params, x, y):
    for weight in params["a"] / 4, params["b"]:
        x = x @ weight
        mean, variance = jnp.mean(x, 0), jnp.var(x, 0)
        x = (x - mean) / jnp.sqrt(variance + 1)
    return jnp.sum(x * y)


@pytest.mark.parametrize(("loss", "lines"), [(normalised, [2]), (twice_standardised, [3, 4])])
def test_means_of_each_micro_batch_are_taken_where_the_user_says_so(loss, lines):
    first = loss.__code__.co_firstlineno
    own = tuple(f"test_micro_batches.py:{first + each}" for each in lines)
    params, x, y = dense()
    found, _ = run_over(sgd(loss), (params, x, y), [1, 2], 2, per_micro_batch=own)
    halves = [jax.value_and_grad(loss)(params, x[m::2], y[m::2]) for m in range(2)]
    value = halves[0][0] + halves[1][0]
    np.testing.assert_allclose(found[-1], value, rtol=1e-6)
    wanted = jax.tree.map(lambda p, a, b: p - a - b, params, halves[0][1], halves[1][1])
    for ours, theirs in zip(found[:-1], jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-4)


def test_what_is_computed_of_the_whole_batch_reads_nothing_else():
    def loss(x, y):
        whitened = (x - jnp.mean(x, 0)) / jnp.sqrt(jnp.var(x, 0) + 1)
        return jnp.sum(whitened * jnp.arange(4.0)) + jnp.sum(y)

    def step(x, momentum):
        value, gradient = jax.value_and_grad(loss)(x, momentum)
        momentum = momentum * 0.5 + gradient
        return x - momentum, momentum, value

    arguments = whole_numbers((BATCH, 4), 0), whole_numbers((BATCH, 4), 1)
    check_equal(step, arguments, [0, 1], 2, exact=False)


def test_numbers_of_examples_in_a_narrow_type_are_rounded_once():
    def step(weight, x):
        return jnp.sum(jax.lax.iota(jnp.bfloat16, 520).astype(jnp.float32)[:, None] * x @ weight)

    weight, x = whole_numbers((2, 2), 0), whole_numbers((520, 2), 1)
    found, _ = run_over(step, (weight, x), [1], 2)
    rounded = np.arange(520).astype(jnp.bfloat16).astype(np.float32)  # compilers may leave it out
    assert found[0] == np.sum(rounded[:, None] * x @ weight)


def test_what_sums_of_the_loop_are_added_to_counts_once():
    def step(table, numbers, at, x):
        return table[numbers].at[at].add(x, mode="drop")  # the rows are looked up before the loop

    at = np.random.default_rng(0).integers(0, 4, BATCH)
    arguments = (whole_numbers((6,), 0), np.array([3, 1, 5, 0]), at, whole_numbers((BATCH,), 1))
    check_equal(step, arguments, [2, 3], 4)


def test_weights_of_grouped_convolutions_add_up():
    def loss(weight, x):
        made = jax.lax.conv_general_dilated(
            *(x, weight, (1,), [(2, 0)]),
            feature_group_count=4,
            dimension_numbers=("NWC", "WIO", "NWC"),
        )
        return jnp.sum(made**2)

    arguments = (whole_numbers((3, 1, 4), 0), whole_numbers((BATCH, 5, 4), 1))
    check_equal(jax.value_and_grad(loss), arguments, [1], 4)


def experts(params, x, y, balance=0):
    """Two of three experts for each row; ``balance`` weighs products of means over the batch."""
    scores = x @ params["router"]
    best, chosen = jax.lax.top_k(scores, 2)
    gates = jnp.sum(jax.nn.one_hot(chosen, 3) * best[..., None], 1)
    made = jnp.einsum("bm,emn,be->bn", x, params["experts"], gates)
    loss = jnp.sum((made - y) ** 2)
    shares = jnp.mean(gates > 0, 0) * jnp.mean(scores, 0)
    return loss + balance * jnp.sum(shares) if balance else loss


def mixture():
    params = {"router": whole_numbers((4, 3), 0), "experts": whole_numbers((3, 4, 2), 1)}
    return params, whole_numbers((BATCH, 4), 2), whole_numbers((BATCH, 2), 3)


def test_rows_are_routed_to_experts_in_every_micro_batch():
    check_equal(sgd(experts), mixture(), [1, 2], 4)


def test_the_same_program_gives_the_same_module():
    texts = {str(micro_batched(sgd(experts), mixture(), [1, 2], 4)) for _ in range(3)}
    assert len(texts) == 1


def test_a_loss_that_balances_experts_over_the_batch_is_refused():
    def loss(*arguments):
        return experts(*arguments, balance=1)

    with pytest.raises(PlanError, match=r"adds up over the batch.*before it is finished"):
        run_over(sgd(loss), mixture(), [1, 2], 4)


def tpu_module(function, *shapes):
    """Lowered for TPUs; no device is needed."""
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",))
    text = lowered.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=True)
    return parse_bytes(text.encode(), new_context())


def kernels_of(module):
    """What each kernel says: its grid, its windows and its body."""
    with module.context:
        ops = [op for op in operations_of(module.operation) if is_tpu_kernel(op)]
        return [str(kernel_of(op).module) for op in ops]


def test_kernels_are_those_that_are_traced_at_the_size_of_a_micro_batch():
    mask = splash_attention.MultiHeadMask([splash_attention.CausalMask((256, 256))] * 2)
    attend = splash_attention.make_splash_mha_single_device(mask)

    def loss(scale, q, k):
        return jnp.sum(jax.vmap(attend)(q * scale, k, k))

    whole, part = ([(128,), *[(examples, 2, 256, 128)] * 2] for examples in (8, 2))
    module, wanted = tpu_module(loss, *whole), kernels_of(tpu_module(loss, *part))
    assert kernels_of(module) != wanted
    run_passes(module, [MicroBatch(micro_batches=4, batch=(1, 2))])
    assert kernels_of(module) == wanted


def test_prints_in_a_loop_over_layers_are_refused_and_not_repeated():
    def step(weights, x):
        def layer(hidden, weight):
            jax.debug.callback(lambda: None)
            return hidden @ weight, None

        return jnp.sum(jax.lax.scan(layer, x, weights)[0])

    with pytest.raises(PlanError, match=r"would run in every micro-batch. Take it out"):
        run_over(step, (whole_numbers((3, 4, 4), 0), whole_numbers((BATCH, 4), 1)), [1], 2)


def test_sums_of_narrow_integers_that_wrap_around_are_not_widened_in_parts():
    def step(x):
        return jnp.sum(x, 0, dtype=jnp.int8).astype(jnp.int32)

    check_equal(step, (np.full((BATCH, 2), 50, np.int8),), [0], 4)


def test_a_number_that_does_not_divide_the_batch_is_refused():
    with pytest.raises(PlanError, match="micro_batches=3 do not divide dim 0 of argument 2"):
        run_over(sgd(squares), dense(), [1, 2], 3)
