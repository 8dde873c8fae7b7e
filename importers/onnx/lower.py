"""From clean ONNX nodes to layers: one handler an operator, all problems gathered."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from dagtrain.graph.heads import loss_node
from dagtrain.graph.ir import Graph, Node, Role, Stage, verify
from hdl.errors import DagtrainError
from hdl.layers.wiring.host import HostInput
from hdl.recipe import Loss, Recipe
from importers.onnx.context import Lost, Lowering, Value, is_vector
from importers.onnx.handlers import HANDLERS
from importers.onnx.handlers.registry import Handler
from importers.onnx.model import LOST, OnnxModel, OnnxNode
from importers.onnx.normalise import RANDOM
from importers.onnx.problems import Problems, Unsupported
from importers.onnx.report import Operator

# what is wrong with an operator that draws, and the cure
DRAWS = ("draws random numbers", "only dropout and stochastic depth may draw: export in evaluation mode")


def lower(
    model: OnnxModel, recipe: Recipe, problems: Problems, operators: dict[str, Operator]
) -> tuple[Graph | None, tuple[str, ...]]:
    """(forward graph from the host's input to the loss; notes).  No graph if there are ``problems`` in the end; what
    became of each operator goes to ``operators``."""
    state = Lowering(model, recipe, problems)
    channels, height, width = model.image_map
    # both keep their names whatever the file calls its nodes
    image_name, loss_name = state.names.take("image"), state.names.take("loss")
    image = HostInput(height=height, width=width, channels=channels)
    edges = {"y": f"{image_name}.y"}
    state.nodes.append(Node(image_name, image, {}, edges, role=Role.HOST))
    state.values[model.image] = Value(edges["y"], (height, width, channels), model.image_shape)
    for node in model.nodes:
        before = len(state.nodes)
        is_made = _lower_node(node, state)
        if node.op != LOST:
            row = operators.setdefault(node.op.removeprefix("dagtrain."), Operator())
            row.nodes += 1
            row.layers.update(type(made.layer).__name__ for made in state.nodes[before:] if is_made)
            row.lost += not is_made
    report_unknown(model, problems)
    heads = [state.names.take(f"{loss_name}_{name}") for name in model.heads]
    scores = [_logits(name, state) for name in (*model.heads, model.output)]
    notes = (*model.notes, *state.notes, *_gates(model, recipe))
    _same_classes(scores, state)
    if list(problems):
        return None, notes
    for name, logits in zip((*heads, loss_name), scores, strict=True):
        assert logits is not None, "a result without a value has a problem"
        state.nodes.append(loss_node(name, recipe, logits.edge, logits.map[2], auxiliary=name != loss_name))
    graph = Graph(model.name, tuple(state.nodes), recipe, state.parameters, state.carried)
    return verify(graph.with_nodes(graph.nodes), Stage.FORWARD), notes


def report_unknown(model: OnnxModel, problems: Problems) -> None:
    """Operators on the way of the image that nobody can handle, all in one problem.

    What works on constants and shapes alone is folded, so it may be any operator of ONNX."""
    fixed = set(model.constants)
    unknown: dict[str, list[str]] = {}
    for node in model.nodes:
        if is_fixed(node, fixed):
            fixed.update(node.outputs)
        elif node.op in HANDLERS or node.op == LOST:
            continue
        elif node.op in RANDOM:
            problems.add(str(node), *DRAWS)
        else:
            unknown.setdefault(node.op.removeprefix("dagtrain."), []).append(node.name)
    if unknown:
        listed = ", ".join(f"{op} ({len(names)}, first at {names[0]})" for op, names in sorted(unknown.items()))
        cure = "supported are " + ", ".join(sorted(op for op in HANDLERS if "." not in op))
        problems.add("", f"uses operators that are not supported: {listed}", cure)


def is_fixed(node: OnnxNode, fixed: Collection[str]) -> bool:
    """Whether a node works on constants and shapes alone, the former being ``fixed``."""
    inputs = node.inputs[:1] if node.op == "CastLike" else node.inputs
    return "." not in node.op and (node.op in ("Shape", "Size") or all(name in fixed for name in inputs if name))


def _lower_node(node: OnnxNode, state: Lowering) -> bool:
    """Whether the node became layers, or nothing; if not, its results are guessed, for what follows to be looked at."""
    for name in node.outputs:
        state.values[name] = None
    given = [value for name in node.inputs if (value := state.values.get(name)) is not None]
    is_guess = any(value.is_guess for value in given)
    handler = HANDLERS.get(node.op)
    if handler is None:
        if is_fixed(node, {*state.fixed, *state.model.constants}):
            state.fixed.update(node.outputs)
            if all(state.values.get(name, ...) is not None for name in node.inputs):
                state.problems.add(str(node), *_why_not_folded(node))
            return False
    else:
        problem = _problem(handler, node, state)
        if problem is None and not is_guess:
            return state.values[node.outputs[0]] is not None
        # how a guess meets other tensors tells of the guess
        if problem is not None and not (is_guess and len(given) > 1):
            state.problems.add(str(node), problem.what, problem.cure)
    state.guess(node)
    return False


def _problem(handler: Handler, node: OnnxNode, state: Lowering) -> Unsupported | None:
    """Runs the handler; what is wrong with its node, None also if that only follows from another one."""
    try:
        handler(node, state)
        for name in node.outputs[1:]:
            if name and state.model.uses[name] and state.values[name] is None:
                raise Unsupported(f"its second result {name} is used", "export a model that does not use it")
    except Lost:
        return None
    except Unsupported as problem:
        return problem
    except DagtrainError as error:
        return Unsupported(error.what, error.cure or "export a model within these limits")
    return None


def _why_not_folded(node: OnnxNode) -> tuple[str, str]:
    if node.op in RANDOM:
        return DRAWS
    cure = "it must follow from constants and shapes; export the model with fixed shapes"
    return "its value can't be computed ahead of the run", cure


def _same_classes(scores: Sequence[Value | None], state: Lowering) -> None:
    """Auxiliary heads, which come first, read the labels of the main one."""
    *heads, main = scores
    for name, value in zip(state.model.heads, heads, strict=True):
        if value is not None and main is not None and value.map[2] != main.map[2]:
            what = f"tells {value.map[2]} classes, the main head {main.map[2]}"
            state.problems.add(f"output {name}", what, "leave out --aux: auxiliary heads share the labels")


def _gates(model: OnnxModel, recipe: Recipe) -> list[str]:
    """Notes on gates that make class scores of which the loss takes the softmax."""
    last = [model.producers.get(name) for name in model.results]
    found = [node for node in last if node is not None and node.op in ("Sigmoid", "HardSigmoid")]
    if recipe.loss is not Loss.CROSS_ENTROPY:
        return []
    why = "so that softmax tells classes little apart; export without it, or train with loss = mean-squared-error"
    return [f"{node} at the end stays: it keeps scores between 0 and 1, {why}" for node in found]


def _logits(name: str, state: Lowering) -> Value | None:
    """Class scores: (batch, classes), perhaps with further dimensions of size 1."""
    if name == state.model.image:
        state.problems.add(f"output {name}", "is not computed from the image", "export the whole model")
        return None
    value = state.values.get(name)
    if value is None:
        return None
    if value.map[:2] != (1, 1) or not is_vector(value.shape):
        cure = "the result must be class scores of shape (N, classes), as of a classifier"
        state.problems.add(f"output {name}", f"has shape {['N', *value.shape[1:]]}", cure)
        return None
    if value.map[2] < 2:
        state.problems.add(f"output {name}", "has a single class", "softmax needs at least two classes")
    return value
