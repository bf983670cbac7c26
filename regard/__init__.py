"""Attention models on one attention core: `regard.load(path)` gives a model to run, to trace and to save."""

from typing import TYPE_CHECKING, Any

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.model import load

__version__ = "0.1.0"
__all__ = ["UserError", "__version__", "load"]


def __getattr__(name: str) -> Any:
    """Import what needs torch only when it is asked for, so that `import regard` stays instant."""
    if name == "load":
        from regard.model import load

        return load
    raise AttributeError(f"module 'regard' has no attribute '{name}'")
