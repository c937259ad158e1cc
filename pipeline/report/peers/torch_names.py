"""The names that PyTorch has for ONNX operators of one and of two operands, and for the reductions of a scatter."""

UNARY = {
    "Neg": "neg", "Abs": "abs", "Sign": "sign", "Exp": "exp", "Log": "log", "Sqrt": "sqrt", "Reciprocal": "reciprocal",
    "Tanh": "tanh", "Sigmoid": "sigmoid", "Erf": "erf", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin",
    "Acos": "acos", "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh", "Asinh": "asinh", "Acosh": "acosh",
    "Atanh": "atanh", "Floor": "floor", "Ceil": "ceil", "Round": "round", "Not": "logical_not", "IsNaN": "isnan",
    "IsInf": "isinf", "Relu": "relu",
}  # fmt: skip
BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Pow": "pow", "Max": "maximum", "Min": "minimum", "And": "logical_and",
    "Or": "logical_or", "Xor": "logical_xor", "Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt",
    "GreaterOrEqual": "ge", "MatMul": "matmul",
}  # fmt: skip
SCATTER = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
