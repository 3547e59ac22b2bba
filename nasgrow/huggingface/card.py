"""Write the model card of a checkpoint: its facts, how it was made, and how to load it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

CARD = "README.md"


def card(title: str, facts: Mapping[str, str], made: Sequence[str], *, base: str | None = None) -> str:
    """Return a model card in Markdown.

    Args:
        title: The name of the model.
        facts: The rows of the card's table: name and value.
        made: How the model was made, a line for each step.
        base: The name of the Hugging Face checkpoint that it was grown from, if there was one.
    """
    head = ["library_name: transformers", "tags: [nasgrow, model-growth]"]
    head += [f"base_model: {base}"] if base else []
    rows = [f"| {name} | {value.replace('|', '/')} |" for name, value in facts.items()]
    steps = [f"{number}. {line}" for number, line in enumerate(made, 1)]
    loading = [
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'model = AutoModelForCausalLM.from_pretrained("path/to/this/folder")',
        'tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")',
        "```",
    ]
    parts = [
        ["---", *head, "---"],
        [f"# {title}"],
        ["| | |", "|---|---|", *rows],
        ["## How it was made", *steps],
        ["## How to load it", *loading],
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"
