"""The optional packages of the extra ``text``, imported where they are first needed."""

import importlib
import os
from typing import Any

from distributed_privrl.core.errors import MissingExtraError


def text_package(name: str) -> Any:
    """Return a package of the extra ``text``; it never looks for models on a network.

    Args:
        name: e.g. ``"transformers"``.

    Raises:
        MissingExtraError: it is not installed.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        package = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(name, "text") from error
    if name == "transformers":
        package.utils.logging.disable_progress_bar()
    return package
