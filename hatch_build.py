"""The README as a package index shows it: its relative links and pictures lead into the repository."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Readme(MetadataHookInterface):
    """Sets `readme` to README.md with absolute links."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put the base address before each relative link."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        pictures = re.sub(r"(!\[[^]]*\]\()(?!\w+:|#)", rf"\1{self.config['repository']}/raw/main/", text)
        links = re.sub(r"(\]\()(?!\w+:|#)", rf"\1{self.config['repository']}/blob/main/", pictures)
        metadata["readme"] = {"content-type": "text/markdown", "text": links}
