"""Solvers, samplers and simulators."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bench.programs.libraries.library_program import Jit, digits, program

ROWS = 1024


def _zeros_or_not() -> tuple[Any, Any]:
    """Digits, and whether each is below five, in numbers as wide as there are."""
    x, y = digits(ROWS)
    wide = jax.dtypes.canonicalize_dtype(float)
    return x.astype(wide), (y < 5).astype(wide)


def _logistic_loss(w: Any, x: Any, y: Any) -> Any:
    logits = x @ w
    return jnp.mean(jnp.logaddexp(0, logits) - y * logits) + 1e-3 * w @ w


def _numpyro_model() -> Any:
    """Bayesian logistic regression."""
    import numpyro
    from numpyro import distributions as dist

    def model(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(jnp.zeros(64), 1.0).to_event(1))
        with numpyro.plate("rows", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    return model


@program("numpyro", "Bayesian logistic regression, NUTS", x64=True, tolerance=1e-6)
def numpyro_nuts(jit: Jit) -> Any:
    from numpyro.infer import NUTS
    from numpyro.infer.util import initialize_model

    model = _numpyro_model()
    x, y = _zeros_or_not()
    kernel = NUTS(model, max_tree_depth=4)
    start = initialize_model(jax.random.key(0), model, model_args=(x, y)).param_info
    state = kernel.init(jax.random.key(1), 2, start.z, model_args=(x, y), model_kwargs={})
    step = jit(lambda state, x, y: kernel.sample(state, (x, y), {}), batch=(1, 2))
    for _ in range(3):
        state = step(state, x, y)
    return state.z, state.num_steps


@program("numpyro", "the same by variational inference")
def numpyro_svi(jit: Jit) -> Any:
    import numpyro
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    model = _numpyro_model()
    x, y = _zeros_or_not()
    svi = SVI(model, AutoNormal(model), numpyro.optim.Adam(1e-2), Trace_ELBO())
    state = svi.init(jax.random.key(0), x, y)
    step = jit(lambda state, x, y: svi.update(state, x, y), batch=(1, 2))
    losses: list[Any] = []
    for _ in range(3):
        state, loss = step(state, x, y)
        losses.append(loss)
    return losses, svi.get_params(state)


@program("blackjax", "Bayesian logistic regression, 8 chains of HMC", x64=True, tolerance=1e-6)
def blackjax_hmc(jit: Jit) -> Any:
    import blackjax

    def kernel(x: Any, y: Any) -> Any:
        def log_density(w: Any) -> Any:
            logits = x @ w
            return jnp.sum(y * logits - jnp.logaddexp(0, logits)) - w @ w / 2

        return blackjax.hmc(log_density, 1e-2, jnp.ones(64), 8)

    x, y = _zeros_or_not()

    def sample(keys: Any, states: Any, x: Any, y: Any) -> Any:
        return jax.vmap(kernel(x, y).step)(keys, states)

    step = jit(sample, batch=(2, 3))
    states = jax.vmap(kernel(x, y).init)(jnp.zeros((8, 64)))
    for number in range(3):
        states, told = step(jax.random.split(jax.random.key(number), 8), states, x, y)
    return states.position, told.is_accepted


@program("jaxopt", "logistic regression by L-BFGS", x64=True, tolerance=1e-6)
def jaxopt_lbfgs(jit: Jit) -> Any:
    import jaxopt

    solver = jaxopt.LBFGS(_logistic_loss, maxiter=10)
    fit = jit(lambda w, x, y: solver.run(w, x, y).params, batch=(1, 2))
    return fit(jnp.zeros(64), *_zeros_or_not())


@program("optimistix", "logistic regression by BFGS", x64=True, tolerance=1e-6)
def optimistix_bfgs(jit: Jit) -> Any:
    import optimistix

    def loss(w: Any, data: Any) -> Any:
        return _logistic_loss(w, *data)

    def fit(w: Any, x: Any, y: Any) -> Any:
        solver = optimistix.BFGS(rtol=1e-6, atol=1e-6)
        return optimistix.minimise(loss, solver, w, (x, y), max_steps=256).value

    return jit(fit, batch=(1, 2), flavour="filter_jit")(jnp.zeros(64), *_zeros_or_not())


@program("lineax", "ridge regression by conjugate gradients", x64=True, tolerance=1e-6)
def lineax_cg(jit: Jit) -> Any:
    import lineax

    def fit(x: Any, y: Any) -> Any:
        like = jax.eval_shape(lambda: jnp.zeros(64))
        operator = lineax.FunctionLinearOperator(
            lambda w: x.T @ (x @ w) + w, like, lineax.positive_semidefinite_tag
        )
        return lineax.linear_solve(operator, x.T @ y, lineax.CG(rtol=1e-9, atol=1e-9)).value

    return jit(fit, batch=(0, 1), flavour="filter_jit")(*_zeros_or_not())


@program("diffrax", "a neural ODE of 64 spirals, gradients through the solver")
def diffrax_neural_ode(jit: Jit) -> Any:
    import diffrax
    import equinox as eqx
    import optax

    optimizer = optax.adam(1e-3)
    times = jnp.linspace(0, 1, 8)

    def solved(field: Any, start: Any) -> Any:
        term = diffrax.ODETerm(lambda t, y, _: field(y))
        found = diffrax.diffeqsolve(
            term,
            diffrax.Tsit5(),
            0.0,
            1.0,
            0.1,
            start,
            saveat=diffrax.SaveAt(ts=times),
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-6),
        )
        return found.ys

    def train_step(field: Any, state: Any, paths: Any) -> Any:
        def loss(field: Any) -> Any:
            return jnp.mean((jax.vmap(lambda y: solved(field, y))(paths[:, 0]) - paths) ** 2)

        value, gradients = eqx.filter_value_and_grad(loss)(field)
        updates, state = optimizer.update(gradients, state, field)
        return eqx.apply_updates(field, updates), state, value

    angles = jnp.linspace(0, 6, 64)[:, None] + 3 * times
    paths = jnp.stack([jnp.cos(angles), jnp.sin(angles)], -1) * (1 - times / 2)[:, None]
    field: Any = eqx.nn.MLP(2, 2, 32, 2, jax.nn.softplus, key=jax.random.key(0))
    state: Any = optimizer.init(eqx.filter(field, eqx.is_array))
    step = jit(train_step, batch=(2,), flavour="filter_jit")
    losses: list[Any] = []
    for _ in range(3):
        field, state, value = step(field, state, paths)
        losses.append(value)
    return losses, eqx.filter(field, eqx.is_array)


@program("ott", "optimal transport between two clouds of digits")
def ott_sinkhorn(jit: Jit) -> Any:
    from ott.geometry import pointcloud
    from ott.solvers import linear

    def distance(x: Any, y: Any) -> Any:
        found = linear.solve(pointcloud.PointCloud(x, y, epsilon=0.5), max_iterations=100)
        return found.reg_ot_cost, found.f

    x, _ = digits(ROWS)
    return jit(distance, batch=(0, 1))(x[:512], x[512:])


@program("brax", "64 ants, 4 steps of the spring backend", x64=True, tolerance=1e-6)
def brax_ant(jit: Jit) -> Any:
    from brax import envs

    environment = envs.create("ant", backend="spring")
    keys = jax.random.split(jax.random.key(0), 64)
    state = jax.vmap(environment.unwrapped.reset)(keys)

    def rollout(state: Any, actions: Any) -> Any:
        return jax.vmap(environment.unwrapped.step)(state, actions)

    step = jit(rollout, batch=(0, 1))
    for number in range(4):
        actions = jax.random.uniform(jax.random.key(number), (64, environment.action_size))
        state = step(state, actions)
    return state.obs, state.reward


@program("mujoco mjx", "64 pendulums, 4 steps", x64=True, tolerance=1e-6)
def mjx_pendulum(jit: Jit) -> Any:
    import mujoco
    from mujoco import mjx

    model = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody><body><joint type="hinge" axis="0 1 0"/>
        <geom type="capsule" size="0.05" fromto="0 0 0 0 0 0.5"/>
        <body pos="0 0 0.5"><joint type="hinge" axis="0 1 0"/>
        <geom type="capsule" size="0.05" fromto="0 0 0 0 0 0.5"/></body></body></worldbody>
        </mujoco>"""
    )
    on_device = mjx.put_model(model)
    angles = jnp.linspace(0.1, 3, 128).reshape(64, 2)
    data = jax.vmap(lambda q: mjx.make_data(model).replace(qpos=q))(angles)
    step = jit(lambda data: jax.vmap(lambda d: mjx.step(on_device, d))(data), batch=(0,))
    for _ in range(4):
        data = step(data)
    return data.qpos, data.qvel
