"""``vector[bits_of(lane, width)]``: a lane of a vector, in Python a slice like any other, in Verilog a part select.

Generators are read as text, where a call in the place of a slice would mean a function of Verilog; so the tree of a
generator has the slice that the call stands for, and whoever reads trees knows slices only.
"""

from __future__ import annotations

import ast


class LaneSlices(ast.NodeTransformer):
    """Puts slices in place of calls of `hdl.stream.bits_of`."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """``x[bits_of(i, w, start)]`` becomes ``x[start + i * w + w : start + i * w]``."""
        self.generic_visit(node)
        call = node.slice
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "bits_of":
            return node
        lane, width, *start = (ast.unparse(argument) if _is_simple(argument) else f"({ast.unparse(argument)})"
                               for argument in call.args)  # fmt: skip
        low = "".join(f"{text} + " for text in start) + f"{lane} * {width}"
        found = ast.parse(f"x[{low} + {width} : {low}]", mode="eval").body
        assert isinstance(found, ast.Subscript)
        for part in ast.walk(found.slice):
            ast.copy_location(part, call)
        node.slice = found.slice
        return node


def _is_simple(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Constant | ast.Attribute)
