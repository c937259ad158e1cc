"""Recurrent layers, unrolled over the sequence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pipeline.frontend.onnx.call import Call
from pipeline.frontend.onnx.operators import operator
from pipeline.frontend.onnx.ops_activation import clamped_line, exponential_minus_one_below_zero, log_of_one_plus_exp
from pipeline.frontend.onnx.ops_linear import product
from pipeline.frontend.onnx.ops_shape import join
from pipeline.frontend.onnx.tensor import Tensor

Activation = Callable[[Tensor], Tensor]
State = tuple[Tensor, ...]

FUNCTIONS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "relu": lambda x, alpha, beta: x.fn("max", 0),
    "tanh": lambda x, alpha, beta: x.fn("tanh"),
    "sigmoid": lambda x, alpha, beta: x.fn("sigmoid"),
    "affine": lambda x, alpha, beta: x * alpha + beta,
    "leakyrelu": lambda x, alpha, beta: x.fn("lt", 0).where(x * alpha, x),
    "thresholdedrelu": lambda x, alpha, beta: x.fn("ge", alpha).where(x, x.like(0)),
    "scaledtanh": lambda x, alpha, beta: (x * beta).fn("tanh") * alpha,
    "hardsigmoid": clamped_line,
    "elu": lambda x, alpha, beta: x.fn("lt", 0).where(exponential_minus_one_below_zero(x) * alpha, x),
    "softsign": lambda x, alpha, beta: x / (x.fn("abs") + 1),
    "softplus": lambda x, alpha, beta: log_of_one_plus_exp(x),
}
DEFAULTS = {"leakyrelu": (0.01, 0.0), "hardsigmoid": (0.2, 0.5)}
ALPHA_ONLY, ALPHA_AND_BETA = ("leakyrelu", "thresholdedrelu", "elu"), ("affine", "scaledtanh", "hardsigmoid")


@dataclass(frozen=True, slots=True)
class Layer:
    """One direction of a recurrent layer.

    gates    X times W with the input bias, for the whole sequence: (sequence, batch, gates * hidden)
    weight   R transposed: (hidden, gates * hidden)
    bias     of the recurrent product, or None
    peephole of LSTM, or None
    """

    gates: Tensor
    weight: Tensor
    bias: Tensor | None
    peephole: Tensor | None
    functions: tuple[Activation, ...]
    hidden: int
    linear_before_reset: bool
    input_forget: bool
    clip: float | None

    def gate(self, x: Tensor, number: int, count: int = 1) -> Tensor:
        """The part of one or several gates of a tensor whose last dimension holds all of them."""
        return x.part(x.rank - 1, number * self.hidden, (number + count) * self.hidden)

    def bounded(self, x: Tensor) -> Tensor:
        return x if self.clip is None else x.fn("max", -self.clip).fn("min", self.clip)


def rnn_step(layer: Layer, x: Tensor, state: State) -> State:
    total = x + product(state[0], layer.weight)
    total = total if layer.bias is None else total + layer.bias
    return (layer.functions[0](layer.bounded(total)),)


def lstm_step(layer: Layer, x: Tensor, state: State) -> State:
    """Gates in the order i, o, f, c; peepholes i, o, f."""
    h, c = state
    total = x + product(h, layer.weight)
    total = total if layer.bias is None else total + layer.bias
    f, g, out = layer.functions
    peep = [layer.gate(layer.peephole, k) for k in range(3)] if layer.peephole is not None else None
    i_in, o_in, f_in, c_in = (layer.gate(total, k) for k in range(4))
    i = f(layer.bounded(i_in + peep[0] * c if peep else i_in))
    forget = 1 - i if layer.input_forget else f(layer.bounded(f_in + peep[2] * c if peep else f_in))
    new = forget * c + i * g(layer.bounded(c_in))
    o = f(layer.bounded(o_in + peep[1] * new if peep else o_in))
    return o * out(new), new


def gru_step(layer: Layer, x: Tensor, state: State) -> State:
    """Gates in the order z, r, h."""
    (h,) = state
    f, g = layer.functions
    zr = layer.gate(x, 0, 2) + product(h, layer.gate(layer.weight, 0, 2))
    bias = layer.bias
    zr = zr if bias is None else zr + layer.gate(bias, 0, 2)
    z, r = f(layer.bounded(layer.gate(zr, 0))), f(layer.bounded(layer.gate(zr, 1)))
    weight = layer.gate(layer.weight, 2)
    if layer.linear_before_reset:
        inner = product(h, weight)
        inner = r * (inner if bias is None else inner + layer.gate(bias, 2))
    else:
        inner = product(r * h, weight)
        inner = inner if bias is None else inner + layer.gate(bias, 2)
    new = g(layer.bounded(layer.gate(x, 2) + inner))
    return ((1 - z) * new + z * h,)


STEPS = {
    "RNN": (1, ("Tanh",), rnn_step),
    "GRU": (3, ("Sigmoid", "Tanh"), gru_step),
    "LSTM": (4, ("Sigmoid", "Tanh", "Tanh"), lstm_step),
}


@operator("RNN", 7, 14, 22)
@operator("GRU", 7, 14, 22)
@operator("LSTM", 7, 14, 22)
def recurrent(call: Call) -> State:
    """Results: every hidden state (sequence, directions, batch, hidden), the last one, and for LSTM the last cell."""
    count, default, step = STEPS[call.op]
    batch_first = bool(call.get("layout", 0))
    x = call.operand(0)
    x = x.transpose((1, 0, 2)) if batch_first else x
    directions = call.operand(1).shape[0]
    hidden = int(call.get("hidden_size", call.operand(2).shape[-1]))
    functions = activations(call, default * directions)
    states = 2 if call.op == "LSTM" else 1
    everything, finals = [], []
    for d in range(directions):
        mine = functions[d * len(default) : (d + 1) * len(default)]
        layer = layer_of(call, x, d, count, hidden, mine)
        state = tuple(initial(call, x, d, hidden, 5 + k, batch_first) for k in range(states))
        backwards = d == 1 or call.get("direction", "forward") == "reverse"
        outputs, final = unrolled(call, layer, step, state, backwards)
        everything.append(outputs.unsqueeze(1))
        finals.append(final)
    results = [join(everything, 1), *(join([final[k].unsqueeze(0) for final in finals], 0) for k in range(states))]
    if batch_first:
        results = [results[0].transpose((2, 0, 1, 3)), *(final.transpose((1, 0, 2)) for final in results[1:])]
    return tuple(results)


def activations(call: Call, default: tuple[str, ...]) -> list[Activation]:
    names = [str(name).lower() for name in call.get("activations", default)]
    alphas, betas = list(call.get("activation_alpha", ())), list(call.get("activation_beta", ()))
    found: list[Activation] = []
    for name in names:
        if name not in FUNCTIONS:
            call.refuse(f"activation {name} is not known", why=f"known are {', '.join(sorted(FUNCTIONS))}")
        alpha, beta = DEFAULTS.get(name, (1.0, 0.0))
        if name in ALPHA_ONLY + ALPHA_AND_BETA and alphas:
            alpha = alphas.pop(0)
        if name in ALPHA_AND_BETA and betas:
            beta = betas.pop(0)
        found.append(lambda x, name=name, alpha=alpha, beta=beta: FUNCTIONS[name](x, alpha, beta))  # type: ignore[misc]
    return found


def layer_of(call: Call, x: Tensor, d: int, count: int, hidden: int, functions: list[Activation]) -> Layer:
    def direction(tensor: Tensor) -> Tensor:
        return tensor.part(0, d, d + 1).reshape(tensor.shape[1:])

    gates = product(x, direction(call.operand(1)).transpose((1, 0)))
    recurrent_bias = None
    if call.optional(3) is not None:
        bias = direction(call.operand(3))
        gates = gates + bias.part(0, 0, count * hidden)
        recurrent_bias = bias.part(0, count * hidden, 2 * count * hidden)
    peephole = call.optional(7)
    return Layer(
        gates,
        direction(call.operand(2)).transpose((1, 0)),
        recurrent_bias,
        None if peephole is None else direction(peephole),
        tuple(functions),
        hidden,
        bool(call.get("linear_before_reset", 0)),
        bool(call.get("input_forget", 0)),
        call.get("clip"),
    )


def initial(call: Call, x: Tensor, d: int, hidden: int, position: int, batch_first: bool) -> Tensor:
    given = call.optional(position)
    if given is None:
        return x.like(np.zeros((x.shape[1], hidden)))
    given = given.transpose((1, 0, 2)) if batch_first else given
    return given.part(0, d, d + 1).reshape(given.shape[1:])


def unrolled(
    call: Call, layer: Layer, step: Callable[[Layer, Tensor, State], State], state: State, backwards: bool
) -> tuple[Tensor, State]:
    """Past the length of a sequence the state stays and the outputs are zero; backwards starts at its end."""
    lengths, length = call.optional(4), layer.gates.shape[0]
    outputs = []
    for t in range(length):
        at = length - 1 - t if backwards else t
        new = step(layer, layer.gates.part(0, at, at + 1).reshape(layer.gates.shape[1:]), state)
        output = new[0]
        if lengths is not None:
            alive = lengths.fn("gt", at).unsqueeze(1)
            new = tuple(alive.where(fresh, old) for fresh, old in zip(new, state, strict=True))
            output = alive.where(output, output.like(0))
        state = new
        outputs.append(output.unsqueeze(0))
    return join(outputs[::-1] if backwards else outputs, 0), state
