"""Helpers that the bench scripts share: job files with other values, and rank correlation."""

import re


def indent_of(line):
    """Leading spaces; None for a line without content."""
    content = line.lstrip(" ")
    return None if not content or content[0] == "#" else len(line) - len(content)


def end_of_block(lines, start, indent):
    """The line after the value of the key at `start`."""
    end = start + 1
    for i in range(start + 1, len(lines)):
        here = indent_of(lines[i])
        if here is None:
            continue
        if here < indent or (here == indent and not lines[i].lstrip().startswith("- ")):
            break
        end = i + 1
    return end


def set_key(text, path, value):
    """Job file `text` with the value of `path` ("training.steps") replaced or added.
    Sections on the way must be blocks, not {in: one line}."""
    lines = text.splitlines()
    keys = path.split(".")
    begin, end, indent = 0, len(lines), 0
    for depth, key in enumerate(keys):
        found = next((i for i in range(begin, end) if indent_of(lines[i]) == indent and
                      re.match(rf" *{re.escape(key)}:( |$)", lines[i])), None)
        if found is None:
            missing = [" " * (indent + 2 * i) + name + ":" for i, name in enumerate(keys[depth:])]
            lines[begin:begin] = missing[:-1] + [f"{missing[-1]} {value}"]
            break
        found_end = end_of_block(lines, found, indent)
        if depth == len(keys) - 1:
            lines[found:found_end] = [f"{' ' * indent}{key}: {value}"]
            break
        inline = lines[found].split(":", 1)[1].split("#")[0].strip()
        if inline:
            raise ValueError(f"{path}: {key} is '{inline}' on one line; write it as a block")
        begin, end = found + 1, found_end
        children = [indent_of(line) for line in lines[begin:end]]
        indent = next((child for child in children if child is not None), indent + 2)
    return "\n".join(lines) + "\n"


def ranks_of(values):
    """1 for the smallest; equal values share the mean of their places."""
    return [sum(other < value for other in values) +
            (sum(other == value for other in values) + 1) / 2 for value in values]


def spearman(xs, ys):
    """Rank correlation, ties included: Pearson's of the ranks. None where one side
    has no order."""
    x_ranks, y_ranks = ranks_of(xs), ranks_of(ys)
    mean = (len(xs) + 1) / 2
    covariance = sum((x - mean) * (y - mean) for x, y in zip(x_ranks, y_ranks))
    x_square = sum((x - mean) ** 2 for x in x_ranks)
    y_square = sum((y - mean) ** 2 for y in y_ranks)
    if x_square == 0 or y_square == 0:
        return None
    return covariance / (x_square * y_square) ** 0.5
