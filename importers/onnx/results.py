"""Which tensors of a file hold class scores: losses, labels and, unless they are trained, auxiliary heads are dropped.

A file may end in the scores; in a loss of the scores, with the labels as a second input; in the label that scikit-learn
predicts, beside its probabilities; and it may have heads beside the main one, which help to train deep networks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from importers.onnx.model import OnnxNode, leading_to
from importers.onnx.problems import Problems

# losses that read class scores, or their logarithms, first
LOSSES = {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}
# what turns class scores into a decision
DECISIONS = {"ArgMax", "TopK", "ai.onnx.ml.ZipMap"}
# what stands between a decision and the result, on the way of its one computed input
AFTER_DECISIONS = {
    "Identity", "Cast", "Reshape", "Squeeze", "Flatten", "Gather", "ai.onnx.ml.ArrayFeatureExtractor",
    "ai.onnx.ml.LabelEncoder",
}  # fmt: skip
# what may stand between a loss and the result
AFTER_LOSSES = {"Identity", "Cast", "Reshape", "Squeeze"}
# each such node is a module by itself
TRAINED = {"Conv", "Gemm", "MatMul", "BatchNormalization"}


@dataclass(frozen=True)
class Result:
    """The tensor that holds the class scores, perhaps behind a softmax; "" if there is none."""

    tensor: str
    # what was dropped, and what is trained beside
    notes: tuple[str, ...] = ()
    # scores of auxiliary heads that are trained
    heads: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[str, ...]:
        """All scores that are trained, the main head's first."""
        return (self.tensor, *self.heads)


def choose_result(
    outputs: Sequence[str],
    nodes: Sequence[OnnxNode],
    inputs: Collection[str],
    constants: Collection[str],
    problems: Problems,
    auxiliary: float = 0.0,
) -> Result:
    """The result of the main head: that which most nodes with weights lead to, the first of equals.

    Those that read more ``inputs`` than one, where others do not, are losses.
    Others that have weights of their own are auxiliary heads, which stay where their losses count (``auxiliary``); that
    there are none then goes to ``problems``."""
    producers = {name: node for node in nodes for name in node.outputs if name}
    statistics = {name for node in nodes if node.op == "BatchNormalization" for name in node.outputs[1:]}
    notes: list[str] = []
    scores = dict.fromkeys(
        _scores(name, producers, constants, notes, problems) for name in outputs if name not in statistics
    )
    if not scores:
        problems.add("", "has 0 outputs (none)", "export a model with one output, the class scores")
        return Result("")
    scores = _without_labels(scores, nodes, inputs, notes)
    trained = {name: sum(node.op in TRAINED for node in leading_to([name], nodes)) for name in scores}
    main = max(scores, key=trained.__getitem__)
    kept = {node.name for node in leading_to([main], nodes)}
    heads = []
    for name in scores:
        if name == main:
            continue
        alone = [node for node in leading_to([name], nodes) if node.name not in kept]
        is_head = any(node.op in TRAINED for node in alone)
        if is_head and auxiliary:
            heads.append(name)
            notes.append(f"output {name} is an auxiliary head, trained beside {main}: its loss counts {auxiliary:g}")
            continue
        what = f"with the {len(alone)} nodes that lead to it alone" if alone else "a tensor on the way"
        hint = "; `--aux 0.3` trains it, too, its loss counting 0.3" if is_head else ""
        notes.append(f"output {name} was dropped, {what}: the class scores are {main}{hint}")
    if auxiliary and not heads:
        cure = "leave out --aux (auxiliary of the recipe), or export in training mode, with all heads as outputs"
        problems.add("", f"has no auxiliary head whose loss could count {auxiliary:g}", cure)
    return Result(main, tuple(dict.fromkeys(notes)), tuple(heads))


def _without_labels(
    scores: dict[str, None], nodes: Sequence[OnnxNode], inputs: Collection[str], notes: list[str]
) -> dict[str, None]:
    """Those that are computed of one input, the image, if there are any: what reads labels beside it is a loss."""
    read = {
        name: {name, *(tensor for node in leading_to([name], nodes) for tensor in node.inputs)}.intersection(inputs)
        for name in scores
    }
    alone = {name: None for name in scores if len(read[name]) == 1}
    if not alone:
        return scores
    for name in scores:
        if name not in alone and read[name]:
            notes.append(f"output {name} was dropped: it reads {', '.join(sorted(read[name]))}, as a loss does")
    return alone


def _scores(
    output: str,
    producers: Mapping[str, OnnxNode],
    constants: Collection[str],
    notes: list[str],
    problems: Problems,
) -> str:
    """The tensor of scores from which a result is computed; itself, as a rule."""
    decision = _decision(output, producers, constants)
    if decision is not None:
        notes.append(f"{decision} at the end was dropped: training needs the class scores, not the decision")
        return decision.inputs[0]
    node = producers.get(output)
    while node is not None and node.op in AFTER_LOSSES:
        node = producers.get(node.inputs[0])
    if node is not None and node.op in LOSSES:
        if len(node.inputs) > 2 and node.inputs[2]:
            what = f"weighs classes by {node.inputs[2]}, which the loss here (softmax with cross-entropy) does not"
            problems.add(str(node), what, "export the model without its loss")
        notes.append(f"{node} at the end was dropped: the loss here is softmax with cross-entropy")
        return node.inputs[0]
    return output


def _decision(output: str, producers: Mapping[str, OnnxNode], constants: Collection[str]) -> OnnxNode | None:
    """The node that decides for a class, if a result is such a decision."""
    node = producers.get(output)
    seen: set[str] = set()
    while node is not None and node.op in AFTER_DECISIONS and node.name not in seen:
        seen.add(node.name)
        computed = [name for name in node.inputs if name in producers and name not in constants]
        made = [producers[name] for name in computed if producers[name].op != "Constant"]
        node = made[0] if len(made) == 1 else None
    return node if node is not None and node.op in DECISIONS and node.inputs else None
